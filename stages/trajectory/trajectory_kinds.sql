-- Which types of heuristics appear first: Fig. 10a for each type (Sec. 5).
--
-- subject           VARCHAR  the model at this point of training
-- last              VARCHAR  the subject that training ended with
-- step              INTEGER  optimiser steps so far
-- operator          VARCHAR  add, subtract, multiply or divide
-- quantity          VARCHAR  as in heuristics
-- kind              VARCHAR  as in heuristics, or multi-result
-- pairs             BIGINT   pairs of late neuron and such a heuristic at this point (trajectory_neurons)
-- last_pairs        BIGINT   the last point's
-- shared            BIGINT   those of the last point's that are there already
-- shared_with_last  DOUBLE   shared / last_pairs; null where the last point has none
-- shared_by_chance  DOUBLE   the same if each heuristic's neurons at this point were any of their layer
with
    here as (select * from trajectory_neurons where subject = $subject),
    ending as (select * from trajectory_neurons where subject = $last),
    width as (select layer, count(distinct neuron) as neurons from naming group by layer),
    counted as (
        select operator, quantity, kind, heuristic, layer, count(*) as pairs, count(*) filter (shared) as shared from here group by all
    ),
    last_counted as (select operator, quantity, kind, heuristic, layer, count(*) as last_pairs from ending group by all),
    types as (
        select operator, quantity, kind, coalesce(sum(pairs), 0) as pairs, coalesce(sum(last_pairs), 0) as last_pairs,
            coalesce(sum(shared), 0) as shared, coalesce(sum(pairs * last_pairs / width.neurons), 0) as expected
        from counted
        full join last_counted using (operator, quantity, kind, heuristic, layer)
        join width using (layer)
        group by operator, quantity, kind
    )
select
    $subject as subject, $last as last, $step::integer as step, operator, quantity, kind,
    pairs::bigint as pairs, last_pairs::bigint as last_pairs, shared::bigint as shared,
    shared / nullif(last_pairs, 0) as shared_with_last, expected / nullif(last_pairs, 0) as shared_by_chance
from types
order by operator, quantity, kind
