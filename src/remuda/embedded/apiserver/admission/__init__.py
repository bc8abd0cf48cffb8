"""Admission: what may be stored, and what the server adds to it.

`AdmissionChain(read).admit(request)` runs the plug-ins and the field validation for every kind; the strict checks of our own
kinds are in `apiserver.own_kinds`.
"""

from __future__ import annotations

from remuda.embedded.apiserver.admission.admission_chain import AdmissionChain
from remuda.embedded.apiserver.admission.request import CREATE, DELETE, UPDATE, AdmissionRequest, Forbidden, ReadObjects

__all__ = [
    "CREATE",
    "DELETE",
    "UPDATE",
    "AdmissionChain",
    "AdmissionRequest",
    "Forbidden",
    "ReadObjects",
]
