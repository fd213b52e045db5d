-- Accuracy of models of our own while they were trained, on a fixed sample of cells and of prompts.
--
-- subject        VARCHAR  what was trained: an entry of `train` in stages/subjects/params.yaml
-- step           BIGINT   optimiser steps so far
-- operator       VARCHAR  whose cells; null: prompts of a task
-- task           VARCHAR  whose prompts; null: cells of the grid
-- split          VARCHAR  train or held-out
-- accuracy       DOUBLE   share of the sample answered correctly, 0 to 1; answers of several tokens: every one of them
-- loss           DOUBLE   cross entropy at the answers of the last batch, nats; null at step 0
-- learning_rate  DOUBLE   at that step
with long as (unpivot training_log on columns(* exclude (subject, step, loss, learning_rate)) into name sample value accuracy),
named as (select *, regexp_replace(sample, '_(train|held_out)$', '') as name from long)
select
    subject,
    step,
    case when name in ('add', 'subtract', 'multiply', 'divide') then name end as operator,
    case when operator is null then name end as task,
    case when ends_with(sample, '_train') then 'train' else 'held-out' end as split,
    accuracy,
    case when step > 0 then loss end as loss,
    learning_rate
from named
order by subject, step, operator, task, split
