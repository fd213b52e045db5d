-- Circuits down to the neuron (Fig. 4b, 12b): the circuit's heads, all other MLPs, and the k neurons of largest effect in
-- each late layer, or in the first layer at each operand; everything else takes its mean at all positions. Neurons are ranked by
-- effect, effect_plus_std, logit_effect, attribution or at random; a circuit is named after that, first_mlp_ before it in the first
-- layer. Where not every neuron was patched, rankings by effect are those of the patched neurons,
-- with k at most patched_neurons; attribution ranks all neurons. Beside them: everything, nothing,
-- and heads (the circuit's heads, all neurons).
--
-- subject            VARCHAR    the model
-- intervention       INTEGER    number of the intervention, from 0; one row per patch
-- operator           VARCHAR    whose circuit, and prompts it is run on
-- split              VARCHAR    prompts it is run on: evaluation
-- component          VARCHAR    head, neuron or mlp that is ablated, or none
-- layer              SMALLINT   decoder layer, from 0
-- units              INTEGER[]  the ablated heads or neurons; null: all of them
-- position           VARCHAR    token position: all, or op1, operator, op2 in the first layer
-- key_position       VARCHAR    null, of edges only
-- replacement        VARCHAR    mean (pooled over operators, each weighted equally); null where
--                               nothing is patched
-- circuit            VARCHAR    how its neurons are chosen, as above; or everything, nothing, heads
-- heads              SMALLINT   heads in the circuit
-- neurons_per_layer  INTEGER    neurons k in each layer where they are chosen; all of the MLP where none is
-- seed               INTEGER    of random; null otherwise
with
    operators as (
        select operator, coalesce(any_value(heads), 0) as heads
        from neuron_effects left join (select operator, count(*) as heads from circuit_heads group by operator) using (operator)
        group by operator
    ),
    ranked as (
        select
            operator, null as seed, layer, position, neuron,
            unnest(if(method = 'exact', ['effect', 'effect_plus_std', 'logit_effect'], ['attribution'])) as ranking,
            unnest(if(method = 'exact', [rank, rank_mean_plus_std, rank_logit], [rank])) as place
        from neuron_effects
        union all  -- random places: of the same neurons, which are all of the layer's, whether each was patched or not
        select operator, seed, layer, position, neuron, 'random', lot(seed, operator, layer, position, neuron)
        from neuron_effects, (select unnest(range($random_circuits)) as seed) where method = 'attribution'
    ),
    orders as (
        select
            operator, if(position = 'last', ranking, 'first_mlp_' || ranking) as circuit, seed, layer,
            if(position = 'last', 'all', position) as position,
                list(neuron order by place, neuron) as neurons,
            $patched_neurons > 0 and ranking not in ('attribution', 'random') as partly_ranked
        from ranked group by all
    ),
    chosen as (
        select * exclude (partly_ranked), k from orders,
            (select distinct unnest($neurons_per_layer) as k)
        where k < len(neurons) and (k <= $patched_neurons or not partly_ranked)
    ),
    circuits as (
        select distinct operator, circuit, heads, k, seed from chosen join operators using (operator)
        union all
        select operator, unnest(['everything', 'nothing', 'heads']), unnest([architecture.heads * layers, 0, operators.heads]),
            unnest([neurons, 0, neurons]), null
        from operators, architecture
    ),
    numbered as (
        select *, row_number() over (order by operator, circuit, seed nulls first, k) - 1 as intervention from circuits
    ),
    heads_left_out as (
        select operator, layer, list(head::integer order by head) as units
        from operators cross join each_head() anti join circuit_heads using (operator, layer, head)
        group by all
    ),
    widths as (select range(neurons)::integer[] as each_neuron from architecture),
    patches as (
        select intervention, 'head' as component, layer, units, 'all' as position
        from numbered join heads_left_out using (operator) where circuit not in ('everything', 'nothing')
        union all
        select intervention, 'neuron', layer, list_filter(each_neuron, lambda n: not list_contains(neurons[:chosen.k], n)), position
        from widths cross join numbered join chosen on
            (numbered.operator, numbered.circuit, numbered.k) = (chosen.operator, chosen.circuit, chosen.k)
            and numbered.seed is not distinct from chosen.seed
        union all
        select intervention, unnest(['head', 'mlp']), layer, null, 'all' from numbered, each_layer() where circuit = 'nothing'
    )
select
    $subject as subject, intervention::integer as intervention, operator, 'evaluation' as split, coalesce(component, 'none') as component,
    layer::smallint as layer, units, position, null::varchar as key_position,
    if(component is not null, 'mean', null) as replacement,
    circuit, heads::smallint as heads, k::integer as neurons_per_layer, seed::integer as seed
from numbered
left join patches using (intervention)
order by intervention, component, layer, position
