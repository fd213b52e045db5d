-- Circuits of heads (Fig. 11): some heads and all MLPs are kept, and all other heads take their
-- mean at all positions. As in the study, the mean is pooled over operators, each with equal
-- weight. For comparison, one circuit uses the mean over the operator's own prompts alone.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0; one row per patch
-- operator      VARCHAR    operator whose circuit it is, and whose prompts it is run on
-- split         VARCHAR    split of the prompts that it is run on: evaluation
-- component     VARCHAR    component that is ablated: head or mlp, or none
-- layer         SMALLINT   decoder layer, from 0; null where nothing is patched
-- units         INTEGER[]  the ablated heads of the layer, from 0; null for all heads, or for an
--                          MLP
-- position      VARCHAR    token position of the patch: all
-- key_position  VARCHAR    always null; only attention edges have a key position
-- replacement   VARCHAR    value that ablated components take: mean (pooled over operators) or
--                          mean_<operator> (over its own prompts); null where nothing is patched
-- circuit       VARCHAR    everything; nothing (MLPs ablated, too); or the ranking of its heads:
--                          effect, logit_effect (largest over positions) or random. own_means is
--                          logit_effect with the operator's own means, nothing_own_means is nothing
--                          with these means
-- heads         SMALLINT   number of heads in the circuit
-- seed          INTEGER    number of a random order of heads, from 0; null otherwise
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
            row_number() over (partition by operator, circuit
                order by score desc nulls last, layer, head) as rank
        from scores
        union all
        select operator, 'random', seed, layer, head,
            row_number() over (
                partition by operator, seed order by lot(seed, operator, layer, head), layer, head
            )
        from head_effects(), (select unnest(range($random_head_circuits)) as seed)
    ),
    counts as (select distinct unnest($head_counts || [heads]) as size, heads as total from model),
    sizes as (select * from counts where size <= total),
    circuits as (
        select distinct operator, circuit, seed, size from ranked, sizes
        -- no head and all heads are the same for every seed
        where seed is null or seed = 0 or size between 1 and total - 1
        union all
        select operator, unnest(['everything', 'nothing', 'nothing_own_means']), null,
            unnest([heads, 0, 0])
        from operators, model
    ),
    numbered as (
        select *,
            row_number() over (order by operator, circuit, seed nulls first, size) - 1
                as intervention
        from circuits
    ),
    patches as (
        select intervention, 'head' as component, layer, list(head::integer order by head) as units
        from numbered join ranked
            on (ranked.operator, ranked.circuit) = (numbered.operator, numbered.circuit)
                and ranked.seed is not distinct from numbered.seed
        where rank > size
        group by intervention, layer
        union all
        select intervention, unnest(['head', 'mlp']), layer, null from numbered, each_layer()
        where circuit in ('nothing', 'nothing_own_means')
    )
select
    $subject as subject, intervention::integer as intervention, operator, 'evaluation' as split,
    coalesce(component, 'none') as component, layer::smallint as layer, units,
    if(component is null, null, 'all') as position,
    null::varchar as key_position,
    case when component is not null then
        if(circuit like '%own_means', 'mean_' || operator, 'mean')
    end as replacement,
    circuit, size::smallint as heads, seed::integer as seed
from numbered left join patches using (intervention)
order by intervention, component, layer
