import pytest

import cler
from cler.config.cluster import Slurm, read_minutes, read_slurm
from cler.config.machine import Machine
from cler.config.reading import read_config
from cler.config.schema import settings_of
from cler.errors import UsageError
from cler.runs.backends import BACKENDS, Backend, find_backend


@pytest.mark.parametrize("on", ["local", "slurm", "ray", "ray:head:6379", "ray:10.0.0.1:6379", "ray:ray://head:10001"])
def test_where_runs_can_be_trained(on):
    assert Machine(on=on).on == on


def test_settings_name_backends_that_there_are():
    for each in settings_of(Machine).values():
        assert set(each.backends) <= set(BACKENDS)


@pytest.mark.parametrize("takes_address", [False, True])
def test_a_backend_that_somebody_adds_can_be_named(takes_address):
    members = {"name": "queue", "__init__": lambda self, machine: None, "takes_address": takes_address}
    queue = cler.register(type("Queue", (Backend,), members | dict.fromkeys(("device", "train"))))
    assert type(find_backend(Machine(on="queue"))) is queue
    if takes_address:
        assert type(find_backend(Machine(on="queue:head:6379"))) is queue
    with pytest.raises(UsageError, match="must be queue:HOST:PORT" if takes_address else "must be queue alone"):
        Machine(on="queue:1")


@pytest.mark.parametrize(
    ("on", "says"),
    [
        ("slrum", r"unknown backend 'slrum' \(known: local, slurm, ray, ray:HOST:PORT\); did you mean 'slurm'\?"),
        ("local:1", "must be local alone"),
        ("slurm:gpu", "must be slurm alone"),
        ("ray:", "must be ray:HOST:PORT, or ray alone"),
        ("ray:auto", "must be ray:HOST:PORT, or ray alone"),
        ("ray:head", "must be ray:HOST:PORT, or ray alone"),
        (None, "must be local, slurm, ray or ray:HOST:PORT"),
    ],
)
def test_where_they_cannot(on, says):
    with pytest.raises(UsageError, match=says):
        Machine(on=on)


@pytest.mark.parametrize(
    ("given", "minutes"),
    [(90, 90), ("30:00", 30), ("2:30", 3), ("02:30:00", 150), ("00:02:01", 3), ("1-02:30", 1590), ("1-00:00:01", 1441)],
)
def test_times_as_slurm_reads_them(given, minutes):
    assert read_minutes(given) == minutes


@pytest.mark.parametrize("given", [0, 1, True, 2.5, "90", "soon", "1:2:3", "00:01:00", "9999-00:00"])
def test_other_times_are_refused(given):
    with pytest.raises(ValueError, match="must be"):
        read_minutes(given)


TABLE = '[slurm]\npartition = "gpu"\ntime = "4:00:00"\n'


def test_the_table_is_read_from_a_settings_file_and_from_python(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text("buffer = 200\n" + TABLE)
    expected = Slurm(partition="gpu", time=240)
    assert Machine(slurm=str(path)).slurm == Machine(slurm={"partition": "gpu", "time": 240}).slurm == expected
    assert read_config(path) == {"buffer": 200, "slurm": expected}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[slurm]\npartiton = "gpu"', r"unknown setting in .*\[slurm\] 'partiton'.*did you mean 'partition'"),
        ("[slurm]\npartition = 3", r"lab.toml: .*partition must be a string without spaces or quotes, not 3"),
        ('[slurm]\naccount = "a b"', r"account must be a string without spaces"),
        ('[slurm]\ntime = "soon"', r"time must be a number of minutes, or HH:MM:SS"),
        ("[slurm]\ntime = 2", r"notice must be at most 60 where the time limit is 2 minutes, not 90"),
        ("[slurm]\ngpus = 8", r"gpus must be at least 0 and at most 1, not 8"),
        ("slurm = 3", r"must be a (table|settings file)"),
    ],
)
def test_mistakes_in_the_table_are_told_in_one_line(tmp_path, text, says):
    path = tmp_path / "lab.toml"
    path.write_text(text)
    for read in (read_slurm, read_config):
        with pytest.raises(UsageError, match=says):
            read(path)


@pytest.mark.parametrize(("text", "says"), [("buffer = 3", r"has no table \[slurm\]"), ("slurm", "is not valid TOML")])
def test_a_file_without_the_table_is_refused(tmp_path, text, says):
    (tmp_path / "lab.toml").write_text(text)
    with pytest.raises(UsageError, match=says):
        Machine(slurm=tmp_path / "lab.toml")
