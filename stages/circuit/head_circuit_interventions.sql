-- Circuits of heads (Fig. 11): some heads and all MLPs work, the other heads take their mean at all
-- positions: that pooled over operators, each with equal weight, as in the study; and once, for
-- comparison, the mean over the operator's own prompts alone.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0; one row per patch
-- operator      VARCHAR    whose circuit, and prompts it is run on
-- split         VARCHAR    prompts it is run on: evaluation
-- component     VARCHAR    head or mlp that is ablated, or none
-- layer         SMALLINT   decoder layer, from 0; null where nothing is patched
-- units         INTEGER[]  the ablated heads; null: all of them, or an MLP
-- position      VARCHAR    token position: all
-- key_position  VARCHAR    null, of edges only
-- replacement   VARCHAR    mean (pooled over operators) or mean_<operator> (over its own prompts);
--                          null where nothing is patched
-- circuit       VARCHAR    everything, nothing (MLPs ablated too), or its ranking: effect,
--                          logit_effect (largest of any position), random; own_means: as
--                          logit_effect, with the operator's own means; nothing_own_means: nothing
--                          with these
-- heads         SMALLINT   heads in the circuit
-- seed          INTEGER    of a random order; null otherwise
with
    model as (select layers * heads as heads from architecture),
    operators as (select distinct operator from component_effects),
    scores as (
        select operator, layer, head, unnest(['effect', 'logit_effect', 'own_means']) as circuit,
            unnest([effect, logit_effect, logit_effect]) as score
        from head_effects()
    ),
    ranked as (
        select operator, circuit, null as seed, layer, head,
            row_number() over (partition by operator, circuit order by score desc nulls last, layer, head) as rank
        from scores
        union all
        select operator, 'random', seed, layer, head,
            row_number() over (
                partition by operator, seed order by lot(seed, operator, layer, head), layer, head
            )
        from head_effects(), (select unnest(range($random_circuits)) as seed)
    ),
    counts as (select distinct unnest($head_counts || [heads]) as size, heads as total from model),
    sizes as (select * from counts where size <= total),
    circuits as (
        select distinct operator, circuit, seed, size from ranked, sizes
        where seed is null or seed = 0 or size between 1 and total - 1  -- no head and all heads are the same for every seed
        union all
        select operator, unnest(['everything', 'nothing', 'nothing_own_means']), null,
            unnest([heads, 0, 0])
        from operators, model
    ),
    numbered as (
        select *, row_number() over (order by operator, circuit, seed nulls first, size) - 1 as intervention from circuits
    ),
    patches as (
        select intervention, 'head' as component, layer, list(head::integer order by head) as units
        from numbered join ranked
            on (ranked.operator, ranked.circuit) = (numbered.operator, numbered.circuit) and ranked.seed is not distinct from numbered.seed
        where rank > size
        group by intervention, layer
        union all
        select intervention, unnest(['head', 'mlp']), layer, null from numbered, each_layer()
        where circuit in ('nothing', 'nothing_own_means')
    )
select
    $subject as subject, intervention::integer as intervention, operator, 'evaluation' as split,
    coalesce(component, 'none') as component, layer::smallint as layer, units, if(component is null, null, 'all') as position,
    null::varchar as key_position,
    case when component is not null then
        if(circuit like '%own_means', 'mean_' || operator, 'mean')
    end as replacement,
    circuit, size::smallint as heads, seed::integer as seed
from numbered left join patches using (intervention)
order by intervention, component, layer
