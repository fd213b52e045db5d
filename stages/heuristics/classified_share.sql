-- The share of neurons that any heuristic describes: as published, above chance, and with false
-- discoveries controlled.
--
-- subject     VARCHAR   the model
-- operator    VARCHAR   add, subtract, multiply or divide
-- layer       SMALLINT  decoder layer, from 0
-- quantities  VARCHAR   which heuristics count: operands (about op1, op2 or both), result, or any
-- criterion   VARCHAR   what must reach the threshold: raw, the score (the study's criterion, with
--                       threshold 0.6); chance_corrected, the chance-corrected score; fdr, the
--                       chance-corrected score of a match with a q_value of at most $level
-- threshold   DOUBLE    score to reach, 0 to 1
-- neurons     INTEGER   number of the layer's neurons that meet the criterion
-- share       DOUBLE    share of the layer's neurons that meet the criterion, 0 to 1
-- null_share  DOUBLE    mean share with the operands relabelled, 0 to 1; null for fdr
-- null_std    DOUBLE    standard deviation over relabellings of the share; null for fdr
with
    sizes as (select operator, layer, count(*) as whole from naming group by operator, layer),
    counted as (
        select
            operator, layer, quantities, measure as criterion, threshold,
            sum(neurons) filter (draw = 0) as neurons,
            sum(neurons) filter (draw > 0) as total,
            sum(neurons * neurons::bigint) filter (draw > 0) as squares,
            count(*) filter (draw > 0) as draws
        from null_shares group by operator, layer, quantities, measure, threshold
    ),
    grouped as (select distinct operator, layer, quantities, threshold from counted),
    controlled as (
        select operator, layer, quantities, threshold, count(distinct neuron) as neurons
        from grouped left join matches using (operator, layer)
        where
            (
                quantities = 'any'
                or (quantities = 'result') = (quantity in ('result', 'asked'))
            )
            and chance_corrected >= threshold and q_value <= $level
        group by operator, layer, quantities, threshold
    ),
    every as (
        select
            operator, layer, quantities, criterion, threshold, neurons, total / draws as mean,
            sqrt(larger(squares / draws - (total / draws) ** 2, 0)) as deviation
        from counted
        union all
        select
            operator, layer, quantities, 'fdr', threshold, coalesce(neurons, 0), null, null
        from grouped left join controlled using (operator, layer, quantities, threshold)
    )
select
    $subject as subject, operator, layer, quantities, criterion, threshold,
    neurons::integer as neurons, neurons / whole as share, mean / whole as null_share,
    deviation / whole as null_std
from every join sizes using (operator, layer)
order by operator, layer, quantities, criterion, threshold
