-- Whether the permutation tests had enough draws for labels.
--
-- Benjamini and Hochberg label k of all neurons if the k-th smallest p_family is at most
-- $level * k / neurons. No p_family is below 1 / (draws + 1), the floor.
--
-- subject        VARCHAR  the model
-- operator       VARCHAR  add, subtract, multiply or divide
-- neurons        INTEGER  neurons tested
-- draws          INTEGER  largest number of relabellings of a neuron; null if no neuron has a match
-- floor          DOUBLE   smallest p_family that these draws can give, 0 to 1
-- needed         INTEGER  neurons that must be at the floor before any can have a label
-- at_floor       INTEGER  neurons that are at the floor
-- controlled     INTEGER  neurons with a q_value of at most $level
-- too_few_draws  BOOLEAN  whether neurons are at the floor, but no label is possible with these
--                         draws
with
    tested as (select operator, count(*) as neurons from naming group by operator),
    best as (
        select
            operator, layer, neuron, min(p_family) as p_family, min(q_value) as q_value,
            max(draws) as draws
        from matches group by operator, layer, neuron
    ),
    most as (select operator, max(draws) as draws from best group by operator),
    counted as (
        select
            operator, most.draws,
            count(*) filter (
                best.draws = most.draws and p_family * (most.draws + 1) < 1.5
            ) as at_floor,
            count(*) filter (q_value <= $level) as controlled
        from best join most using (operator) group by operator, most.draws
    )
select
    $subject as subject, operator, neurons::integer as neurons, draws, 1 / (draws + 1) as floor,
    ceil(neurons / ($level * (draws + 1)))::integer as needed,
    coalesce(at_floor, 0)::integer as at_floor,
    coalesce(controlled, 0)::integer as controlled,
    coalesce(at_floor > 0 and controlled = 0, false) as too_few_draws
from tested left join counted using (operator)
order by operator
