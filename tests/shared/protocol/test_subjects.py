"""Subjects of the offline work of a model, whatever it is called."""

import re

from hypothesis import given
from hypothesis import strategies as st

from shared.protocol import subjects

KEY = re.compile(r"[-/_=.a-zA-Z0-9]+")  # of a bucket


@given(st.text(min_size=1))
def test_a_models_name_is_one_token_of_a_subject_and_of_a_key(name: str) -> None:
    token = subjects.model_token(name)
    assert KEY.fullmatch(token) and "." not in token and subjects.model_of_token(token) == name


def test_what_is_readable_stays_so() -> None:
    assert subjects.model_token("smollm2-135m-instruct") == "smollm2-135m-instruct"
    assert subjects.model_token("org/Some.Model") == "org=2FSome=2EModel"
    of_model = subjects.of_model("a.b")
    assert of_model.result("batch_1.7") == "slackwater.results.a=2Eb.batch_1.7"
    for subject in (of_model.request("batch_1.7"), of_model.result("batch_1.7"), of_model.failure("batch_1.7", "run")):
        assert subjects.request_of(subject) == "batch_1.7"
