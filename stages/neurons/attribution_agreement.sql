-- How well attribution, one gradient per prompt, finds the neurons that patching each of them finds.
-- Where not every neuron was patched (patched_neurons), only the random sample is compared, because
-- the other patched neurons were chosen by attribution; attribution_recall then estimates recall.
--
-- subject           VARCHAR   the model
-- operator          VARCHAR   add, subtract, multiply or divide
-- layer             SMALLINT  decoder layer, from 0
-- position          VARCHAR   token position of the neurons: op1, operator, op2 or last
-- against           VARCHAR   what attribution is held against: effect or logit_effect of patching
-- neurons           BIGINT    neurons compared, all with both; most often all of the layer's, else
--                             the random sample
-- rank_correlation  DOUBLE    Spearman's over these neurons; the same for every k
-- k                 INTEGER   how many neurons of largest effect
-- recall            DOUBLE    share of the k of largest patched effect that are among attribution's
--                             k, 0 to 1; null where not every neuron was patched
-- chance            DOUBLE    its expectation if attribution ranked at random: k / neurons; null
--                             with recall
with
    sample as (  -- all neurons where all are patched
        select layer, position, units[1] as neuron from neuron_interventions
            where component = 'neuron' and operator is null
    ),
    exact as (
        select operator, layer, position, neuron, unnest(['effect', 'logit_effect']) as against, unnest([effect, logit_effect]) as patched
        from neuron_effects where method = 'exact' and (layer, position, neuron) in (from sample)
    ),
    compared as (
        select exact.*, attribution.effect as estimated
        from exact join neuron_effects as attribution using (operator, layer, position, neuron)
        where attribution.method = 'attribution' and attribution.effect is not null and patched is not null
    ),
    ranked as (  -- places are for the top k; ranks, the same for equal effects (mean rank less its middle), for Spearman
        select
            *,
            row_number() over (peers order by patched desc, neuron) as patched_place,
            row_number() over (peers order by estimated desc, neuron) as estimated_place,
            (rank() over (peers order by patched) - rank() over (peers order by patched desc)) / 2 as patched_rank,
            (rank() over (peers order by estimated) - rank() over (peers order by estimated desc)) / 2 as estimated_rank
        from compared
        window peers as (partition by operator, layer, position, against)
    ),
    correlations as (
        select operator, layer, position, against, count(*) as neurons, corr(patched_rank, estimated_rank) as rank_correlation
        from ranked group by all
    )
select
    $subject as subject, operator, layer, position, against, neurons, rank_correlation, k,
    if($patched_neurons = 0,
        count(*) filter (where patched_place <= k and estimated_place <= k) / k, null) as recall,
    if($patched_neurons = 0, k / neurons, null) as chance
from ranked
join correlations using (operator, layer, position, against)
join (select unnest($ks)::integer as k) on k <= neurons
group by operator, layer, position, against, neurons, rank_correlation, k
order by operator, layer, position, against, k
