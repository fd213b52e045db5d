-- Knock-outs of whole heuristics: all neurons that stand for one are silenced together at the last
-- position (Sec. 4.2, Fig. 7). A control silences as many neurons of other heuristics in each of
-- the same layers; where a layer has too few, there is none. Every heuristic that is a label is
-- knocked out; of the other two ways of counting, those with most neurons.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0; one row per patch
-- operator      VARCHAR    whose heuristics, and prompts it is run on
-- split         VARCHAR    prompts it is run on: evaluation
-- component     VARCHAR    neuron, or none for the clean run
-- layer         SMALLINT   decoder layer of the neurons, from 0
-- units         INTEGER[]  the silenced neurons of the layer's MLP, from 0
-- position      VARCHAR    token position: last
-- key_position  VARCHAR    null, of edges only
-- replacement   VARCHAR    zero or mean (pooled over operators), each once for the same neurons;
--                          null for the clean run
-- membership    VARCHAR    how the heuristic's neurons are counted, as in heuristic_neurons; null for the clean run
-- arm           VARCHAR    heuristic, control (random neurons of other heuristics, by no way of counting of this one), or none for the
--                          operator's clean run
-- heuristic     VARCHAR    whose neurons are silenced, or counted and avoided by a control; null for the clean run
-- neurons       INTEGER    neurons that the intervention silences, in all layers; at least $fewest_neurons, 0 in the clean run
-- draw          INTEGER    of a control, from 0; null otherwise
with
    sized as (select operator, membership, heuristic, count(*) as neurons from heuristic_neurons group by all),
    chosen as (
        select * from sized where neurons >= $fewest_neurons
        qualify membership = 'label'
            or row_number() over (partition by operator, membership order by neurons desc, heuristic) <= $most_heuristics
    ),
    members as (
        select operator, membership, heuristic, neurons, layer, neuron
        from heuristic_neurons join chosen using (operator, membership, heuristic)
    ),
    sizes as (select operator, membership, heuristic, neurons, layer, count(*) as wanted from members group by all),
    others as (
        select operator, membership, heuristic, neurons, layer, wanted, neuron
        from sizes join (select distinct operator, membership, layer, neuron from heuristic_neurons) using (operator, membership, layer)
        anti join heuristic_neurons using (operator, layer, neuron, heuristic)  -- by no way of counting
    ),
    drawn as (
        select *, row_number() over (
                partition by operator, membership, heuristic, draw, layer
                order by lot($knockout_seed, draw, operator, heuristic, layer, neuron), neuron
            ) as place
        from others, (select unnest(range($control_draws)) as draw)
        qualify place <= wanted
    ),
    silenced as (
        select operator, membership, heuristic, neurons, 'heuristic' as arm, null as draw, layer, list(neuron order by neuron) as units
        from members group by all
        union all
        select operator, membership, heuristic, neurons, 'control', draw, layer, list(neuron order by neuron)
        from drawn group by operator, membership, heuristic, neurons, draw, layer
        qualify sum(count(*)) over (partition by operator, membership, heuristic, draw) = neurons  -- fewer would be no control
    ),
    patches as (
        select *, unnest(['zero', 'mean']) as replacement from silenced
        union all
        select distinct operator, null, null, 0, 'none', null, null, null, null from chosen
    )
select
    $subject as subject,
    (dense_rank() over (
        order by operator, membership nulls first, heuristic nulls first, arm, draw nulls first, replacement
    ) - 1)::integer as intervention,
    operator, 'evaluation' as split, if(arm = 'none', 'none', 'neuron') as component,
    layer::smallint as layer, units::integer[] as units, if(arm = 'none', null, 'last') as position, null::varchar as key_position,
    replacement, membership, arm, heuristic, neurons::integer as neurons, draw::integer as draw
from patches
order by intervention, layer
