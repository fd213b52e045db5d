-- Matches of heuristics and neurons: scores, permutation tests, and the false discovery rate over
-- all neurons.
--
-- q_value controls false discoveries among neurons: Benjamini and Hochberg on every neuron's
-- smallest p_family, with 1 for neurons without a candidate. Within a neuron, p_family accounts
-- for the search through the catalogue. So if all pairs with a q_value of at most q are labelled,
-- at most a share q of the labelled neurons is labelled by chance (Benjamini and Bogomolov 2014).
--
-- subject           VARCHAR   the model
-- operator          VARCHAR   add, subtract, multiply or divide
-- layer             SMALLINT  decoder layer, from 0
-- neuron            INTEGER   neuron of the layer's MLP, from 0
-- heuristic         VARCHAR   name of a heuristic in the table heuristics, or of a set of results
--                             found on this neuron's map
-- kind              VARCHAR   kind of the heuristic, as in the table scores
-- quantity          VARCHAR   what the heuristic is about: op1, op2, result, both, custom or asked
-- side              VARCHAR   top or bottom: whether the map's largest or smallest values are
--                             described
-- score             FLOAT     share of the k largest (or smallest) cells that satisfy the
--                             heuristic, 0 to 1, where k is the number of all cells that satisfy it
-- chance_score      FLOAT     share of all cells that satisfy the heuristic, 0 to 1: the score of
--                             chance
-- chance_corrected  FLOAT     chance-corrected score, (score - chance_score) / (1 - chance_score)
--                             with ties broken at random; 0 is chance, 1 is perfect
-- strength          FLOAT     mean of the map over the heuristic's cells, in root mean squares of
--                             the map
-- null_mean         FLOAT     mean of the chance-corrected score with the operands relabelled
-- z                 FLOAT     chance_corrected minus null_mean, in units that depend on the number
--                             of values and cells of the heuristic
--                             (stages/heuristics/null_distribution/p_values.py)
-- p_value           DOUBLE    share of relabellings that score at least as much on this heuristic
-- p_family          DOUBLE    share of relabellings in which any heuristic has at least this z
-- draws             INTEGER   number of relabellings
-- q_value           DOUBLE    false discovery rate among neurons, 0 to 1, if all pairs with a
--                             p_family as small are labelled
-- strong            BOOLEAN   whether the map is far from zero on the heuristic's cells, on this
--                             side: by at least $smallest_strength root mean squares of the map
-- nonredundant      BOOLEAN   whether the match is strong and not redundant. It is redundant if its
--                             cells overlap those of a better strong match of the neuron, on the
--                             same side, by at least $largest_overlap (chance-corrected)
with
    candidates as (
        select
            scores.* exclude (subject, operator, chance_corrected),
            permutation_tests.chance_corrected, null_mean, z, p_value, p_family,
            draws,
            case side when 'top' then strength else -strength end >= $smallest_strength as strong
        from scores join permutation_tests using (operator, layer, neuron, heuristic, side)
        where operator = $operator
    ),
    tested as (select count(*) as neurons from naming where operator = $operator),
    best as (
        select layer, neuron, min(p_family) as p_family from candidates group by layer, neuron
    ),
    steps as (
        select p_family, 0 as neurons from candidates
        union all select p_family, 1 from best
    ),
    counted as (
        select p_family, sum(sum(neurons)) over (order by p_family) as labelled
        from steps group by p_family
    ),
    controlled as (
        select
            p_family,
            smaller(1, min(p_family * tested.neurons / labelled) over (
                order by p_family rows between current row and unbounded following
            )) as q_value
        from counted cross join tested
    ),
    redundant as (
        select distinct worse.layer, worse.neuron, worse.heuristic, worse.side
        from candidates as worse
        join candidates as better using (layer, neuron)
        join heuristic_overlaps as shared
            on (shared.heuristic, shared.other) = (worse.heuristic, better.heuristic)
        where
            shared.operator = $operator
            and worse.strong and better.strong and better.side = worse.side
            and better.p_family <= worse.p_family
            and (better.chance_corrected, worse.heuristic)
                > (worse.chance_corrected, better.heuristic)
            and overlap >= $largest_overlap
    )
select
    $subject as subject, $operator as operator, layer, neuron, heuristic, kind, quantity, side,
    score, chance_score,
    chance_corrected, strength, null_mean, z, p_value, p_family, draws, q_value, strong,
    strong and redundant.heuristic is null as nonredundant
from candidates
join controlled using (p_family)
left join redundant using (layer, neuron, heuristic, side)
order by layer, neuron, heuristic, side
