"""Module paths, names and parameters of IPython Parallel, for programs that were written for it.

`paths` says what each path stands for, `client`, `cluster` and `profiles` translate arguments and attributes,
`launchers`, `canning`, `values`, `error` and `joblib` are what programs import. Nothing here is loaded before a program
uses one of them: `broadleaf.extensions` asks for it. Broadleaf itself does not use it.
"""
