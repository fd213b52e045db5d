-- Causal mediation over training: when late MLPs at the last position come to carry the answer, beside how often it is right.
--
-- subject         VARCHAR  the model at this point
-- last            VARCHAR  the subject that training ended with
-- step            INTEGER  optimiser steps so far
-- task            VARCHAR  task of the pairs
-- condition       VARCHAR  what differs within a pair
-- operator        VARCHAR  operator of the clean prompt; all: every operator together, and tasks without operators
-- importance      DOUBLE   as in relative_importance, of all pairs
-- ci_low          DOUBLE   lower end of its interval
-- ci_high         DOUBLE   upper end
-- without_effect  DOUBLE   importance if every effect were the same
-- log_effects     DOUBLE   sum of all MLPs' log effects; near 0 there is nothing of which importance could be a part
-- late_effects    DOUBLE   late MLPs' part of that sum
-- correct         DOUBLE   share of clean prompts answered correctly, 0 to 1
-- pairs           BIGINT   pairs
select
    $subject as subject, $last as last, $step::integer as step, task, condition, operator, a.importance, a.ci_low, a.ci_high,
    a.without_effect, a.log_effects, a.importance * a.log_effects as late_effects, c.pairs / a.pairs as correct, a.pairs
from relative_importance as a
join relative_importance as c using (task, condition, operator)
where a.which = 'all' and c.which = 'answered'
order by task, condition, operator
