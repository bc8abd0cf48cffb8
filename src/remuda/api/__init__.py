"""The API's vocabulary: our kinds as Structs, codec, selectors, conditions, refusals.

Pure: no I/O, no clock. A kind's types, its checks and its CRD columns live here; what is *decided* about an object lives in
`core`.
"""
