# SPDX-License-Identifier: Apache-2.0
"""The forms of setup() and what becomes of their arguments."""

import pytest

from conftest import SETUP

NAMES = (
    "local_hostname",
    "metadata_server",
    "global_segment_size",
    "local_buffer_size",
    "protocol",
    "rdma_devices",
    "master_server_addr",
)
CONFIG = {"local_hostname": "h", "metadata_server": "P2PHANDSHAKE"}


def options(fake):
    return fake.seen.options.decode().split("|")


def test_positional_and_keyword_forms_mean_the_same(closed, fake):
    assert closed.setup(*SETUP) == 0
    positional = options(fake)
    closed.close()
    assert closed.setup(**dict(zip(NAMES, SETUP))) == 0
    assert options(fake) == positional == ["127.0.0.1:50051", "host", "", "tcp", str(16 << 20)]


def test_tenant_and_late_arguments_are_taken(closed, fake):
    assert closed.setup(*SETUP, None, False, "", tenant_id="blue", client_http_port=1) == 0
    assert options(fake)[2] == "blue"


def test_unknown_keyword_is_a_type_error_that_names_it(closed):
    with pytest.raises(TypeError) as caught:
        closed.setup(*SETUP, warp_drive=True)
    assert "warp_drive" in str(caught.value)
    assert "incompatible function arguments" in str(caught.value)


@pytest.mark.parametrize(
    "args", [(), SETUP[:6], (1,) + SETUP[1:], ("h", "m", -1, 0, "tcp", "", "")]
)
def test_missing_or_mistyped_arguments_are_type_errors(closed, args):
    with pytest.raises(TypeError):
        closed.setup(*args)


@pytest.mark.parametrize(
    "position,value", [(2, 1), (2, 1023), (3, 1), (3, (1 << 40) + 1), (3, 1 << 63)]
)
def test_sizes_out_of_range_are_refused(closed, position, value, fake):
    args = list(SETUP)
    args[position] = value
    assert closed.setup(*args) == -600
    assert NAMES[position] in closed.last_error()
    assert fake.open_stores() == 0


@pytest.mark.parametrize("segment,lent", [(0, 0), (1024, 1 << 20), (1 << 21, 1 << 21)])
def test_small_segments_are_rounded_up_to_what_a_provider_takes(closed, fake, segment, lent):
    assert closed.setup("h", "", segment, 1024, "tcp", "", "") == 0
    assert options(fake)[4] == str(lent)


@pytest.mark.parametrize(
    "protocol,wire",
    [
        ("tcp", "tcp"),
        ("TCP", "tcp"),
        ("rdma", "rdma"),
        ("nvlink", "nvlink"),
        ("rpc_only", ""),
        ("", ""),
    ],
)
def test_protocols_are_taken(closed, fake, protocol, wire):
    assert closed.setup("h", "", 0, 0, protocol, "mlx5_0,mlx5_1", "") == 0
    assert options(fake)[3] == wire


def test_unknown_protocol_is_refused(closed):
    assert closed.setup("h", "", 0, 0, "pigeon", "", "") == -600
    assert "pigeon" in closed.last_error()


def test_failure_to_open_carries_the_librarys_text(closed):
    assert closed.setup("0.0.0.0", "", 0, 0, "tcp", "", "") == -600
    assert "wildcard" in closed.last_error()


def test_failure_to_open_has_the_causes_code(closed, fake):
    fake.fail(call=-5004)
    assert closed.setup(*SETUP) == -900
    fake.fail()
    assert closed.setup(*SETUP) == 0


def test_dict_form_has_defaults(closed, fake):
    assert closed.setup(CONFIG) == 0
    assert options(fake) == ["127.0.0.1:50051", "h", "", "tcp", str(16 << 20)]
    closed.close()
    assert closed.setup(config=CONFIG) == 0


@pytest.mark.parametrize(
    "text,size",
    [
        ("16MB", 16 << 20),
        ("16 MB", 16 << 20),
        ("1.5GB", 3 << 29),
        ("2g", 2 << 30),
        (33554432, 32 << 20),
        ("4GiB", 4 << 30),
    ],
)
def test_dict_form_takes_human_sizes(closed, fake, text, size):
    assert closed.setup({**CONFIG, "global_segment_size": text}) == 0
    assert options(fake)[4] == str(size)


@pytest.mark.parametrize(
    "key,value",
    [
        ("global_segment_size", "50%"),
        ("global_segment_size", "-1"),
        ("local_buffer_size", "lots"),
        ("local_buffer_size", "infinite"),
        ("protocol", "pigeon"),
        ("enable_ssd_offload", "perhaps"),
    ],
)
def test_dict_form_refuses_values_that_mean_nothing(closed, key, value):
    assert closed.setup({**CONFIG, key: value}) == -600
    assert closed.last_error()


@pytest.mark.parametrize("missing", list(CONFIG))
def test_dict_form_needs_its_two_required_keys(closed, missing):
    config = {key: value for key, value in CONFIG.items() if key != missing}
    assert closed.setup(config) == -600
    assert missing in closed.last_error()


def test_dict_form_warns_about_unknown_keys_and_goes_on(closed):
    with pytest.warns(UserWarning, match="warp_drive"):
        assert closed.setup({**CONFIG, "warp_drive": "on"}) == 0


@pytest.mark.parametrize("text", ["h\0x", "h\ud800"])
def test_text_that_is_no_text_is_refused(closed, text, fake):
    for position in (0, 1, 4, 5, 6):
        args = list(SETUP)
        args[position] = text
        with pytest.raises(TypeError, match="incompatible function arguments"):
            closed.setup(*args)
    assert closed.setup({**CONFIG, "local_hostname": text}) == -600
    assert closed.setup({**CONFIG, "global_segment_size": f"16MB{text}"}) == -600
    assert "global_segment_size is no plain text" in closed.last_error()
    assert fake.open_stores() == 0


def test_dict_form_lets_exceptions_of_values_pass(closed):
    class Broken:
        def __str__(self):
            raise KeyError("broken")

    with pytest.raises(KeyError):
        closed.setup({**CONFIG, "tenant_id": Broken()})


def test_dict_form_refuses_keys_that_are_no_text(closed):
    for key in (7, "tenant_id\0", "\ud800"):
        with pytest.raises(TypeError):
            closed.setup({**CONFIG, key: "on"})


def test_features_that_do_not_exist_warn_and_the_store_opens(closed):
    with pytest.warns(RuntimeWarning, match="SSD"):
        assert closed.setup(*SETUP, enable_ssd_offload=True) == 0
    closed.close()
    with pytest.warns(RuntimeWarning, match="HTTP"):
        assert (
            closed.setup({**CONFIG, "enable_client_http_server": True, "client_http_port": 9300})
            == 0
        )
