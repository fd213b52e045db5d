-- Causal mediation over training: when late MLPs at the last position begin to carry the answer,
-- with the accuracy at the same checkpoint.
--
-- subject         VARCHAR  the model at this checkpoint
-- last            VARCHAR  the model with which training ended
-- step            INTEGER  optimiser steps of the checkpoint
-- task            VARCHAR  task of the pairs
-- condition       VARCHAR  what differs within a pair
-- operator        VARCHAR  operator of the clean prompt; all: all operators together, and tasks
--                          without operators
-- importance      DOUBLE   relative importance, of all pairs, as in relative_importance
-- ci_low          DOUBLE   lower end of the interval of importance
-- ci_high         DOUBLE   upper end of the interval of importance
-- without_effect  DOUBLE   importance if all effects were equal, 0 to 1
-- log_effects     DOUBLE   sum of all MLPs' log effects; if it is near 0, importance is a ratio of
--                          noise
-- late_effects    DOUBLE   sum of the late MLPs' log effects
-- correct         DOUBLE   share of clean prompts that the model answers correctly, 0 to 1
-- pairs           BIGINT   pairs
select
    $subject as subject,
    $last as last,
    $step::integer as step,
    task, condition, operator,
    a.importance, a.ci_low, a.ci_high, a.without_effect, a.log_effects,
    a.importance * a.log_effects as late_effects,
    c.pairs / a.pairs as correct,
    a.pairs
from relative_importance as a
join relative_importance as c using (task, condition, operator)
where a.which = 'all' and c.which = 'answered'
order by task, condition, operator
