"""The schemas of the configuration: types, ranges, defaults and help texts, in one place.

A class of `Schema` describes the options of one class or function that conf/ names by `_target_`.
A `Choice` is a file of conf/: a schema with the values of its keys. From them
`python -m nws.experiment.options.schemas` writes these files, and the tables of
docs/configuration.md.
`nws.experiment.options.validation` checks a configuration by them.
"""
