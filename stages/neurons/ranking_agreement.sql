-- How much the ranking of patched neurons matters: by mean effect, by mean + standard deviation as
-- in the study's code, or by mean effect on logits. If not every neuron was patched, k is at most
-- patched_neurons: ranks beyond these are ranks in a random sample.
--
-- subject    VARCHAR   the model
-- operator   VARCHAR   add, subtract, multiply or divide
-- layer      SMALLINT  decoder layer, from 0
-- position   VARCHAR   role of the token: op1, operator, op2 or last
-- ranking_a  VARCHAR   one ranking: effect, effect_plus_std or logit_effect
-- ranking_b  VARCHAR   the other ranking, later in the alphabet
-- k          INTEGER   number of top neurons
-- shared     DOUBLE    share of the top k neurons that both rankings have in common, 0 to 1
-- chance     DOUBLE    expected share of two random rankings: k / patched neurons
with ranked as (from neuron_rankings())
select
    $subject as subject,
    operator, layer, position,
    a.ranking as ranking_a,
    b.ranking as ranking_b,
    k,
    count(*) filter (where a.rank <= k and b.rank <= k) / k as shared,
    k / count(*) as chance
from ranked as a
join ranked as b using (operator, layer, position, neuron)
cross join (select unnest($ks)::integer as k)
where a.ranking < b.ranking
group by operator, layer, position, a.ranking, b.ranking, k
having k <= count(*) and ($patched_neurons = 0 or k <= $patched_neurons)
order by operator, layer, position, ranking_a, ranking_b, k
