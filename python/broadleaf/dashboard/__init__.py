"""The dashboard: one page that shows what a cluster is doing.

`server` starts and ends it and loads little; `pages` answers requests, with tornado, `access` says who may ask, and
`doors` how many at a time. `feed` asks the cluster and sends what `frames` makes of its answers; `log_tail` reads the
controller's log, and `host_meter` how busy this host is. `jupyter` is for JupyterLab, and `page` has the page itself.
"""
