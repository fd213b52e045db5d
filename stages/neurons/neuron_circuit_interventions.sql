-- Circuits of neurons (Fig. 4b, 12b): the circuit's heads, all other MLPs, and the k neurons with
-- the largest effects in each late layer, or in the first layer at each operand. Everything else
-- takes its mean at all positions. Neurons are ranked by effect, effect_plus_std, logit_effect,
-- attribution or at random, which names the circuit. Names of circuits in the first layer begin
-- with first_mlp_. If not every neuron was patched, effects rank only the patched neurons, with k
-- at most patched_neurons; attribution ranks all neurons. Three circuits for comparison are
-- everything, nothing, and heads (the circuit's heads and all neurons).
--
-- subject            VARCHAR    the model
-- intervention       INTEGER    number of the intervention, from 0; one row per patch
-- operator           VARCHAR    operator of the circuit, and of the prompts that it runs on
-- split              VARCHAR    prompts that the intervention runs on, always evaluation
-- component          VARCHAR    ablated component: head, neuron or mlp, or none
-- layer              SMALLINT   decoder layer, from 0; null if nothing is ablated
-- units              INTEGER[]  ablated heads or neurons, from 0; null: all of the layer
-- position           VARCHAR    ablated positions: all, or for the first layer op1, operator or
--                               op2; null if nothing is ablated
-- key_position       VARCHAR    always null: no attention edge is patched
-- replacement        VARCHAR    mean (pooled over operators, each with equal weight); null if
--                               nothing is ablated
-- circuit            VARCHAR    ranking of the neurons: effect, effect_plus_std, logit_effect,
--                               attribution or random, for the first layer after first_mlp_; or
--                               everything, nothing or heads
-- heads              SMALLINT   heads in the circuit
-- neurons_per_layer  INTEGER    neurons k in each layer from which neurons are selected; all
--                               neurons of the MLP for everything and heads, 0 for nothing
-- seed               INTEGER    seed of a random circuit, from 0; null for other circuits
with
    head_counts as (select operator, count(*) as heads from circuit_heads group by operator),
    operators as (
        select operator, coalesce(any_value(heads), 0) as heads
        from neuron_effects left join head_counts using (operator)
        group by operator
    ),
    each_neuron as (
        select operator, layer, position, neuron, rank
        from neuron_effects
        where method = 'attribution'
    ),
    patched as (from neuron_effects where method = 'exact'),
    -- every ranking has all neurons; those that were not patched have no place
    ranked as (
        select
            operator, null as seed, layer, position, neuron,
            unnest(['attribution', 'effect', 'effect_plus_std', 'logit_effect']) as ranking,
            unnest([
                each_neuron.rank, patched.rank, patched.rank_mean_plus_std, patched.rank_logit
            ]) as place
        from each_neuron
        left join patched using (operator, layer, position, neuron)
        union all
        select
            operator, seed, layer, position, neuron, 'random',
            lot(seed, operator, layer, position, neuron)
        from each_neuron, (select unnest(range($random_circuits)) as seed)
    ),
    orders as (
        select
            operator,
            if(position = 'last', ranking, 'first_mlp_' || ranking) as circuit,
            seed, layer,
            if(position = 'last', 'all', position) as position,
            list(neuron::integer order by place, neuron) as neurons,
            count(place) as places,
            $patched_neurons > 0 and ranking not in ('attribution', 'random') as partly_ranked
        from ranked
        group by all
    ),
    selected as (
        select * exclude (places, partly_ranked), k
        from orders, (select distinct unnest($neurons_per_layer) as k)
        where k < places and (k <= $patched_neurons or not partly_ranked)
    ),
    circuits as (
        select distinct operator, circuit, heads, k, seed
        from selected join operators using (operator)
        union all
        select
            operator,
            unnest(['everything', 'nothing', 'heads']),
            unnest([architecture.heads * layers, 0, operators.heads]),
            unnest([neurons, 0, neurons]),
            null
        from operators, architecture
    ),
    numbered as (
        select
            *,
            row_number() over (order by operator, circuit, seed nulls first, k) - 1 as intervention
        from circuits
    ),
    ablated_heads as (
        select operator, layer, list(head::integer order by head) as units
        from operators
        cross join each_head()
        anti join circuit_heads using (operator, layer, head)
        group by all
    ),
    patches as (
        select intervention, 'head' as component, layer, units, 'all' as position
        from numbered join ablated_heads using (operator)
        where circuit not in ('everything', 'nothing')
        union all
        select
            intervention, 'neuron', layer, list_sort(neurons[selected.k + 1:]), position
        from numbered
        join selected
            on (numbered.operator, numbered.circuit, numbered.k)
                = (selected.operator, selected.circuit, selected.k)
            and numbered.seed is not distinct from selected.seed
        union all
        select intervention, unnest(['head', 'mlp']), layer, null, 'all'
        from numbered, each_layer()
        where circuit = 'nothing'
    )
select
    $subject as subject,
    intervention::integer as intervention,
    operator,
    'evaluation' as split,
    coalesce(component, 'none') as component,
    layer::smallint as layer,
    units, position,
    null::varchar as key_position,
    if(component is not null, 'mean', null) as replacement,
    circuit,
    heads::smallint as heads,
    k::integer as neurons_per_layer,
    seed::integer as seed
from numbered
left join patches using (intervention)
order by intervention, component, layer, position
