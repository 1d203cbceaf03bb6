"""The steps of data preparation: raw files -> tables, with feedback -> tokens -> packed corpus."""

from dataclasses import asdict
from functools import partial

from pydantic_core import to_jsonable_python

from data_contracts.findings import Thresholds
from tasks.core.files import file_digest
from tasks.core.step import Step
from tasks.core.store import digest_of
from tasks.data import sources, walks
from tasks.data.contract import check
from tasks.data.feedback.add import FeedbackRules, add_feedback
from tasks.data.feedback.decisions import NO_FEEDBACK, Decisions
from tasks.data.pack import pack
from tasks.data.read import read
from tasks.data.sources import RawDataSet
from tasks.data.tokenise import tokenise
from xcmodels.data.prepare_config import PrepareConfig

READ, ADD_FEEDBACK = "read", "add feedback"


def tables_step(feedback: Decisions) -> str:
    """Return the step that makes the tables which all later steps read."""
    return ADD_FEEDBACK if len(feedback) else READ


def steps(data: RawDataSet, config: PrepareConfig, seed: int, feedback: Decisions = NO_FEEDBACK) -> list[Step]:
    """Return the steps from a raw data set to a corpus, in order; `read` refuses files that changed since."""
    data = sources.hashed(data, file_digest)
    files = {path.name: data.sha256[table] for table, path in data.files.items()}
    thresholds = Thresholds(leak_share=config.leak_share, drift_fail=config.drift_fail)
    anchors = data.anchors if config.walks else ()
    facts = {"name": data.name, "propensity": list(data.propensity), "anchors": list(anchors)}
    plan = [Step(READ, "tables", partial(read, data), ("tasks.data.read",),
                 {"files": files, "format": data.format.name})]
    if len(feedback):
        rules = FeedbackRules(config.feedback_held_out, config.feedback_most, config.weight_power)
        plan.append(Step(ADD_FEEDBACK, "tables", partial(add_feedback, feedback, rules), ("tasks.data.feedback.add",),
                         {"decisions": digest_of(to_jsonable_python(feedback)), **asdict(rules)}, {"tables": READ}))
    tables = tables_step(feedback)
    plan += [
        Step("check tables", "contract", partial(check, data.name, thresholds), ("data_contracts.check",),
             {"data": data.name, "thresholds": thresholds}, {"tables": tables}),
        Step("tokenise", "tokens", partial(tokenise, config, anchors), ("tasks.data.tokenise",),
             {"tokenizer": config.tokenizer, "vocabulary": config.vocabulary, "max_title": config.max_title,
              "max_content": config.max_content, "augment": config.augment, "anchors": list(anchors)},
             {"tables": tables, "contract": "check tables"})]
    if anchors:
        walk_settings = walks.WalkSettings(seed, config.walk_hops, config.walk_restart, config.walk_top,
                                           config.walk_degree)
        plan.append(Step("walk graphs", "walks", partial(walks.walk_all, anchors, walk_settings), ("tasks.data.walks",),
                         {"anchors": list(anchors), **asdict(walk_settings)},
                         {"tables": tables, "contract": "check tables"}))
    plan.append(Step("pack", "corpus", partial(pack, config, facts, seed), ("tasks.data.pack",),
                     {"facts": facts, "validation": [config.validation, config.validation_max], "seed": seed,
                      "weight_power": config.weight_power},
                     {"tables": tables, "tokens": "tokenise", **({"walks": "walk graphs"} if anchors else {})}))
    return plan
