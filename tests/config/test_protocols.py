import pytest

from cler.config.comparing import completed
from cler.config.making import grid, make_settings, unusual
from cler.config.protocols import PROTOCOLS, protocol_defaults
from cler.config.registry import METHODS, REGULARIZERS, TEACHERS
from cler.config.schema import settings_of
from cler.config.settings import Settings, own_settings
from cler.errors import UsageError


def chosen(*names, **given):
    settings = make_settings(**given).to_dict()
    return tuple(settings[name] for name in names)


def test_a_protocol_says_what_is_not_given():
    names = ("batch", "replay_batch", "optimizer", "lr", "sgd_momentum", "augment", "normalize", "class_order")
    wide = {"protocol": "online-10+64", "dataset": "cifar100"}
    assert chosen(*names, method="er", **wide) == (10, 64, "adam", 5e-4, 0.0, "full", False, "seed")
    assert chosen(*names, method="er-ace", **wide) == (10, 64, "sgd", 1e-3, 0.9, "crop-flip", False, "seed")
    assert chosen(*names, method="cope", **wide) == (10, 64, "sgd", 0.005, 0.0, "crop-flip", False, "seed")
    ours = chosen(*names, method="er-ace", dataset="cifar100", protocol="online-10+10")
    assert ours == chosen(*names, method="er-ace", dataset="cifar100")


def test_what_is_given_wins():
    wide = {"method": "er", "protocol": "online-10+64"}
    names = ("replay_batch", "lr", "normalize", "class_order", "augment")
    own = {"replay_batch": 20, "lr": 0.1, "normalize": True, "class_order": None, "augment": "crop"}
    assert chosen(*names, **wide, **own) == tuple(own.values())
    other = make_settings(method="er-ace", protocol="online-10+64", optimizer="adam")
    assert (other.sgd_momentum, other.weight_decay) == (0.0, None)  # those of the protocol's were for another one


def test_it_is_told_in_results_and_names_and_absent_from_older_ones():
    settings = make_settings(method="er", protocol="online-10+64", lr=0.1)
    assert unusual(settings) == {"protocol": "online-10+64", "lr": 0.1}
    assert settings.to_dict()["protocol"] == "online-10+64"
    assert completed({"method": "er"})["protocol"] is None
    made = grid({"method": "er", "protocol": [None, "online-10+64"]})
    assert [(one.protocol, one.replay_batch) for one in made] == [(None, 10), ("online-10+64", 64)]
    with pytest.raises(UsageError, match=r"unknown protocol 'online-10\+63'.*did you mean 'online-10\+64'"):
        make_settings(protocol="online-10+63")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocols_name_only_what_exists(name):
    known = settings_of(Settings).keys() - {"protocol", "method", "regularizer"}
    about = PROTOCOLS[name]
    assert about.keys() - {"summary", "methods"} <= known
    for pair, values in about["methods"].items():
        method, regularizer, teacher = [*pair.split("+"), "none", "none"][:3]
        assert regularizer in ("none", *REGULARIZERS)
        assert teacher in ("none", *TEACHERS)
        if method in METHODS:
            assert values.keys() <= known | own_settings({"method": method}).keys()
            made = make_settings(method=method, regularizer=regularizer, teacher=teacher, protocol=name).to_dict()
            assert {each: made[each] for each in values} == values


def test_the_entry_of_a_method_with_its_additions_is_the_most_specific(monkeypatch):
    methods = {"er": {"lr": 3}, "er+jigsaw": {"weight": 4}, "er+jigsaw+mkd": {"weight": 5}}
    entry = {"summary": "", "lr": 1, "batch": 2, "methods": methods}
    monkeypatch.setitem(PROTOCOLS, "mine", entry)
    assert protocol_defaults("mine", "er", "jigsaw") == {"lr": 3, "batch": 2, "weight": 4}
    assert protocol_defaults("mine", "er-ace", "jigsaw") == {"lr": 1, "batch": 2}
    assert protocol_defaults("mine", "er", "jigsaw", "mkd") == {"lr": 3, "batch": 2, "weight": 5}
    assert protocol_defaults("mine", "er", "jigsaw", "ema")["weight"] == 4
    assert protocol_defaults(None, "er", "none") == {}
