-- Knock-outs of whole heuristics: all neurons labelled with one are silenced together at the last position (Sec. 4, Fig. 7).
-- A control silences as many other labelled neurons in each of the same layers; where a layer has too few, there is none.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0; one row per patch
-- operator      VARCHAR    whose labels, and prompts it is run on
-- split         VARCHAR    prompts it is run on: evaluation
-- component     VARCHAR    neuron, or none for the clean run
-- layer         SMALLINT   decoder layer of the neurons, from 0
-- units         INTEGER[]  the silenced neurons of the layer's MLP, from 0
-- position      VARCHAR    token position: last
-- key_position  VARCHAR    null, of edges only
-- replacement   VARCHAR    zero or mean, each once for the same neurons; null for the clean run
-- arm           VARCHAR    heuristic, control (random labelled neurons without that heuristic), or none for the operator's clean run
-- heuristic     VARCHAR    whose neurons are silenced, or counted and avoided by a control; null for the clean run
-- neurons       INTEGER    neurons that the intervention silences, in all layers; at least $fewest_neurons, 0 in the clean run
-- draw          INTEGER    of a control, from 0; null otherwise
with
    labelled as (select distinct operator, layer, neuron, heuristic from labels),
    chosen as (
        select operator, heuristic, count(*) as neurons from labelled group by operator, heuristic having count(*) >= $fewest_neurons
    ),
    members as (select operator, heuristic, neurons, layer, neuron from labelled join chosen using (operator, heuristic)),
    sizes as (select operator, heuristic, neurons, layer, count(*) as wanted from members group by all),
    others as (
        select operator, heuristic, neurons, layer, wanted, neuron
        from sizes join (select distinct operator, layer, neuron from labelled) using (operator, layer)
        anti join labelled using (operator, layer, neuron, heuristic)
    ),
    drawn as (
        select *, row_number() over (
                partition by operator, heuristic, draw, layer
                order by md5_number_lower(concat_ws(':', $knockout_seed, draw, operator, heuristic, layer, neuron)), neuron
            ) as place
        from others, (select unnest(range($control_draws)) as draw)
        qualify place <= wanted
    ),
    silenced as (
        select operator, heuristic, neurons, 'heuristic' as arm, null as draw, layer, list(neuron order by neuron) as units
        from members group by all
        union all
        select operator, heuristic, neurons, 'control', draw, layer, list(neuron order by neuron)
        from drawn group by operator, heuristic, neurons, draw, layer
        qualify sum(count(*)) over (partition by operator, heuristic, draw) = neurons  -- fewer would be no control
    ),
    patches as (
        select *, unnest(['zero', 'mean']) as replacement from silenced
        union all
        select distinct operator, null, 0, 'none', null, null, null, null from chosen
    )
select
    $subject as subject,
    (dense_rank() over (order by operator, heuristic nulls first, arm, draw nulls first, replacement) - 1)::integer as intervention,
    operator, 'evaluation' as split, if(arm = 'none', 'none', 'neuron') as component,
    layer::smallint as layer, units::integer[] as units, if(arm = 'none', null, 'last') as position, null::varchar as key_position,
    replacement, arm, heuristic, neurons::integer as neurons, draw::integer as draw
from patches
order by intervention, layer
