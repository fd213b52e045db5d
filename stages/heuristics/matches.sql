-- Which heuristics describe which neurons, with what relabelling says of them and what follows for all neurons together.
--
-- q_value controls false discoveries among neurons: Benjamini and Hochberg on every neuron's best p_family, those without a candidate
-- counting as 1. Within a neuron, p_family has already paid for the search through the catalogue; calling all pairs with
-- q_value at most q therefore lets a share of at most q of the labelled neurons be labelled by chance (Benjamini and Bogomolov 2014).
--
-- subject         VARCHAR   the model
-- operator        VARCHAR   add, subtract, multiply or divide
-- layer           SMALLINT  decoder layer, from 0
-- neuron          INTEGER   neuron of the layer's MLP, from 0
-- heuristic       VARCHAR   as in heuristics, or a set of results found on this neuron's map
-- kind            VARCHAR   as in heuristics, or multi-result
-- quantity        VARCHAR   as in heuristics
-- side            VARCHAR   top or bottom
-- score           FLOAT     share of the map's k first (or last) cells that satisfy it, k being how many cells do
-- share           FLOAT     of all cells that satisfy it: the score of chance
-- corrected       FLOAT     (score - share) / (1 - share) with ties broken at random; chance is 0, perfect is 1
-- strength        FLOAT     mean of the map over its cells, in root mean squares of the map
-- null_corrected  FLOAT     mean of corrected with the operands relabelled
-- z               FLOAT     by how much corrected is more than that, in units of the heuristic's size (stages/heuristics/null/p_values.py)
-- p_value         DOUBLE    share of relabellings that score as much on this heuristic
-- p_family        DOUBLE    share of relabellings in which any heuristic has as large a z
-- draws           INTEGER   relabellings
-- q_value         DOUBLE    share of false discoveries, among neurons, if all pairs with as small a p_family are called
-- strong          BOOLEAN   whether the map is far from zero on its cells, on the right side: at least $smallest_strength
-- foremost        BOOLEAN   whether it is strong and no better strong match of the neuron shares cells with it beyond chance
with
    candidates as (
        select scores.* exclude (corrected), nulls.corrected, null_corrected, z, p_value, p_family, draws,
            case side when 'top' then strength else -strength end >= $smallest_strength as strong
        from scores join nulls using (operator, layer, neuron, heuristic, side)
    ),
    tested as (select operator, count(*) as neurons from naming group by operator),
    best as (select operator, layer, neuron, min(p_family) as p_family from candidates group by operator, layer, neuron),
    steps as (
        select operator, p_family, 0 as neurons from candidates
        union all select operator, p_family, 1 from best
    ),
    counted as (
        select operator, p_family, sum(sum(neurons)) over (partition by operator order by p_family) as called
        from steps group by operator, p_family
    ),
    controlled as (
        select operator, p_family,
            smaller(1, min(p_family * tested.neurons / called) over (
                partition by operator order by p_family rows between current row and unbounded following
            )) as q_value
        from counted join tested using (operator)
    ),
    redundant as (
        select distinct worse.operator, worse.layer, worse.neuron, worse.heuristic, worse.side
        from candidates as worse
        join candidates as better using (operator, layer, neuron)
        join heuristic_overlaps as shared
            on (shared.operator, shared.heuristic, shared.other) = (worse.operator, worse.heuristic, better.heuristic)
        where worse.strong and better.strong and better.side = worse.side and better.p_family <= worse.p_family
            and (better.corrected, worse.heuristic) > (worse.corrected, better.heuristic) and overlap >= $largest_overlap
    )
select
    $subject as subject, operator, layer, neuron, heuristic, kind, quantity, side, score, share, corrected, strength, null_corrected, z,
    p_value, p_family, draws, q_value, strong, strong and redundant.heuristic is null as foremost
from candidates
join controlled using (operator, p_family)
left join redundant using (operator, layer, neuron, heuristic, side)
order by operator, layer, neuron, heuristic, side
