-- Accuracy of our own subject while it was trained, on a fixed sample of cells.
--
-- step           BIGINT   optimiser steps so far
-- operator       VARCHAR  whose cells
-- split          VARCHAR  train or held-out
-- accuracy       DOUBLE   share of the sample answered correctly, 0 to 1
-- loss           DOUBLE   cross entropy at the answers of the last batch, nats; null at step 0
-- learning_rate  DOUBLE   at that step
with long as (unpivot training_log on columns(* exclude (step, loss, learning_rate)) into name sample value accuracy)
select
    step,
    split_part(sample, '_', 1) as operator,
    case when ends_with(sample, '_train') then 'train' else 'held-out' end as split,
    accuracy,
    case when step > 0 then loss end as loss,
    learning_rate
from long
order by step, operator, split
