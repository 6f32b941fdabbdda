from cler.engine.events import Message, RunName, Started, each_line_once


def test_a_message_is_passed_on_once_and_other_events_each_time():
    heard = []
    emit = each_line_once(heard.append)
    started = Started(RunName("a"), 0, 0)
    for event in (Message("one"), started, Message("two"), Message("one"), started):
        emit(event)
    assert heard == [Message("one"), started, Message("two"), started]
