"""A check for schemathesis: a request that the API's description allows is accepted, unless the answer names a reason that no
schema can express.

It takes the place of positive_data_acceptance, which allows or forbids a status as a whole. Its reasons are in
schemathesis.toml.
"""

import re

import schemathesis
from schemathesis.core.failures import Failure
from schemathesis.specs.openapi.checks import positive_data_acceptance


@schemathesis.check
class accepted_unless_listed:
    def __init__(self, reasons):
        self.reasons = [re.compile(reason) for reason in reasons]

    def after_response(self, context, response, case):
        try:
            return positive_data_acceptance(context, response, case)
        except Failure:
            if response.status_code == 400 and self.is_listed(response.json()):
                return None
            raise

    def is_listed(self, body):
        # An error of several fields names each in its details.
        messages = [fault["message"] for fault in body.get("details", [body])]
        return all(any(reason.fullmatch(message) for reason in self.reasons) for message in messages)
