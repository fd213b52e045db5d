-- Accuracy of the models trained here during training, on a fixed sample of cells and of prompts.
--
-- subject        VARCHAR  the trained model: an entry of `train` in stages/subjects/params.yaml
-- step           BIGINT   optimiser steps so far
-- operator       VARCHAR  operator of the cells; null for prompts of a task
-- task           VARCHAR  task of the prompts; null for cells of the grid
-- split          VARCHAR  train or held-out
-- accuracy       DOUBLE   share of the sample answered correctly, 0 to 1; if answers have several
--                         tokens, all of them must be correct
-- loss           DOUBLE   cross entropy at the answers of the last batch, nats; null at step 0
-- learning_rate  DOUBLE   learning rate at this step
with
    long as (
        unpivot training_log on columns(* exclude (subject, step, loss, learning_rate))
        into name sample value accuracy
    ),
    named as (
        select *, regexp_replace(sample, '_(train|held_out)$', '') as name from long
    )
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
