-- How well the rankings of components agree between two draws of prompts (seeds).
--
-- subject               VARCHAR  the model
-- operator              VARCHAR  add, subtract, multiply or divide
-- measure               VARCHAR  measure by which components are ranked: effect (mean of Eq. 1),
--                                median_effect or logit_effect
-- component             VARCHAR  components that are ranked, at all positions: mlp, head or both
-- pairs_of_seeds        INTEGER  number of pairs of seeds that are compared
-- rank_correlation      DOUBLE   Spearman's correlation of the two rankings, -1 to 1, mean over
--                                pairs of seeds; null if all effects are equal
-- rank_correlation_min  DOUBLE   smallest correlation over pairs of seeds, -1 to 1
-- shared_top            DOUBLE   share of the $top_heads heads of largest effect (at any position)
--                                that both draws have in common, 0 to 1, mean over pairs of seeds;
--                                null for MLPs alone
with
    each_prompt as (
        select
            patched.intervention, operator, seed, effect(patched, clean) as effect,
            logit_effect(patched, clean) as logit_effect
        from runs as patched
        join runs as clean using (pair)
        join pairs using (pair)
        where clean.intervention = 0 and patched.intervention > 0 and split = 'discovery'
    ),
    measured as (
        select intervention, operator, seed, avg(effect) as effect, median(effect) as median_effect,
            avg(logit_effect) as logit_effect
        from each_prompt group by intervention, operator, seed
    ),
    long as (
        unpivot measured on effect, median_effect, logit_effect into name measure value effect
    ),
    members as (
        select intervention, unnest([component, 'both']) as component, layer, units[1] as head
        from component_interventions where layer is not null
    ),
    ranked as (  -- equal effects share the mean of their ranks
        select operator, measure, component, seed, intervention,
            rank() over larger + (count(*) over same - 1) / 2.0 as rank
        from long join members using (intervention)
        window
            larger as (partition by operator, measure, component, seed order by effect desc),
            same as (partition by operator, measure, component, seed, effect)
    ),
    correlations as (
        select a.operator, a.measure, a.component, a.seed as seed_a, b.seed as seed_b,
            if(min(a.rank) < max(a.rank) and min(b.rank) < max(b.rank), corr(a.rank, b.rank),
                null) as correlation
        from ranked as a join ranked as b using (operator, measure, component, intervention)
        where a.seed < b.seed
        group by all
    ),
    tops as (  -- one row per seed with its top heads, each of which counts once
        select operator, measure, seed,
            list((layer, head) order by effect desc, layer, head)[:$top_heads] as heads
        from (
            select operator, measure, seed, layer, head, max(effect) as effect
            from long join members using (intervention) where component = 'head'
            group by operator, measure, seed, layer, head
        )
        group by operator, measure, seed
    ),
    shared as (
        select a.operator, a.measure, a.seed as seed_a, b.seed as seed_b,
            len(list_intersect(a.heads, b.heads)) / len(a.heads) as share
        from tops as a join tops as b using (operator, measure) where a.seed < b.seed
    )
select
    $subject as subject, operator, measure, component, count(*)::integer as pairs_of_seeds,
    avg(correlation) as rank_correlation, min(correlation) as rank_correlation_min,
    if(component = 'mlp', null, avg(share)) as shared_top
from correlations left join shared using (operator, measure, seed_a, seed_b)
group by operator, measure, component
order by operator, measure, component
