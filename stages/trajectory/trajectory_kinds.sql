-- Which types of heuristics appear first: Fig. 10a for each type (Sec. 5).
--
-- subject           VARCHAR  the model at this checkpoint
-- last              VARCHAR  the last checkpoint of its training, a model of its own
-- step              INTEGER  optimiser steps so far
-- operator          VARCHAR  add, subtract, multiply or divide
-- quantity          VARCHAR  quantity that the heuristics are about, as in heuristics
-- kind              VARCHAR  type of the heuristics, as in heuristics, or multi-result
-- pairs             BIGINT   number of pairs of a late neuron and such a heuristic at this
--                            checkpoint (trajectory_neurons)
-- last_pairs        BIGINT   number of such pairs at the last checkpoint
-- shared            BIGINT   number of the last checkpoint's pairs that are present at this
--                            checkpoint
-- shared_with_last  DOUBLE   shared / last_pairs, 0 to 1; null if the last checkpoint has no such
--                            pair
-- shared_by_chance  DOUBLE   share expected if each heuristic's neurons at this checkpoint were
--                            random neurons of their layer, 0 to 1
with
    present as (select * from trajectory_neurons where subject = $subject),
    ending as (select * from trajectory_neurons where subject = $last),
    width as (select layer, count(distinct neuron) as neurons from naming group by layer),
    counted as (
        select operator, quantity, kind, heuristic, layer, count(*) as pairs,
            count(*) filter (shared) as shared
        from present group by all
    ),
    last_counted as (select operator, quantity, kind, heuristic, layer, count(*) as last_pairs
        from ending group by all),
    types as (
        select operator, quantity, kind, coalesce(sum(pairs), 0) as pairs,
            coalesce(sum(last_pairs), 0) as last_pairs,
            coalesce(sum(shared), 0) as shared,
            coalesce(sum(pairs * last_pairs / width.neurons), 0) as expected
        from counted
        full join last_counted using (operator, quantity, kind, heuristic, layer)
        join width using (layer)
        group by operator, quantity, kind
    )
select
    $subject as subject, $last as last, $step::integer as step, operator, quantity, kind,
    pairs::bigint as pairs, last_pairs::bigint as last_pairs, shared::bigint as shared,
    shared / nullif(last_pairs, 0) as shared_with_last,
    expected / nullif(last_pairs, 0) as shared_by_chance
from types
order by operator, quantity, kind
