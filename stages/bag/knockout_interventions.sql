-- Ablations of whole heuristics: all neurons that have a heuristic are ablated together at the last
-- position (Sec. 4.2, Fig. 7). A control ablates as many neurons of other heuristics in each of the
-- same layers; if a layer has too few, there is no control. Every heuristic that is a label is
-- ablated. By each of the other two criteria, only the heuristics with most neurons are ablated.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0; one row per patch
-- operator      VARCHAR    operator of the heuristic and of the prompts that it is run on
-- split         VARCHAR    split of the prompts that it is run on: evaluation
-- component     VARCHAR    component that is ablated: neuron, or none for the clean run
-- layer         SMALLINT   decoder layer of the neurons, from 0
-- units         INTEGER[]  the ablated neurons of the layer's MLP, from 0
-- position      VARCHAR    token position of the patch: last
-- key_position  VARCHAR    always null; only attention edges have a key position
-- replacement   VARCHAR    value that ablated neurons take: zero or mean (pooled over operators),
--                          each once for the same neurons; null for the clean run
-- criterion     VARCHAR    criterion by which neurons have the heuristic, as in heuristic_neurons:
--                          label, fdr or threshold; null for the clean run
-- arm           VARCHAR    heuristic; control (random neurons that have other heuristics, and not
--                          this one by any criterion); or none for the operator's clean run
-- heuristic     VARCHAR    heuristic whose neurons are ablated, or matched in number and avoided by
--                          a control; null for the clean run
-- neurons       INTEGER    number of ablated neurons in all layers together, at least
--                          $fewest_neurons; 0 in the clean run
-- draw          INTEGER    number of a control's random draw, from 0; null otherwise
with
    sized as (select operator, criterion, heuristic, count(*) as neurons from heuristic_neurons
        group by all),
    selected as (
        select * from sized where neurons >= $fewest_neurons
        qualify criterion = 'label'
            or row_number() over (partition by operator, criterion
                order by neurons desc, heuristic) <= $most_heuristics
    ),
    members as (
        select operator, criterion, heuristic, neurons, layer, neuron
        from heuristic_neurons join selected using (operator, criterion, heuristic)
    ),
    sizes as (select operator, criterion, heuristic, neurons, layer, count(*) as wanted
        from members group by all),
    others as (
        select operator, criterion, heuristic, neurons, layer, wanted, neuron
        from sizes join (select distinct operator, criterion, layer, neuron from heuristic_neurons)
            using (operator, criterion, layer)
        -- they have this heuristic by no criterion
        anti join heuristic_neurons using (operator, layer, neuron, heuristic)
    ),
    drawn as (  -- keeps the drawn neurons alone in memory, which a window over all others does not
        select operator, criterion, heuristic, neurons, draw, layer,
            arg_min(neuron, lot($knockout_seed, draw, operator, heuristic, layer, neuron), wanted)
                as units
        -- a cross join would hold all others in memory
        from (select *, unnest(range($control_draws)) as draw from others)
        group by operator, criterion, heuristic, neurons, draw, layer
    ),
    silenced as (
        select operator, criterion, heuristic, neurons, 'heuristic' as arm, null as draw, layer,
            list(neuron order by neuron) as units
        from members group by all
        union all
        select operator, criterion, heuristic, neurons, 'control', draw, layer, list_sort(units)
        from drawn
        -- with fewer neurons it would not be a control
        qualify sum(len(units)) over (partition by operator, criterion, heuristic, draw) = neurons
    ),
    patches as (
        select *, unnest(['zero', 'mean']) as replacement from silenced
        union all
        select distinct operator, null, null, 0, 'none', null, null, null, null from selected
    )
select
    $subject as subject,
    (dense_rank() over (
        order by operator, criterion nulls first, heuristic nulls first, arm, draw nulls first,
            replacement
    ) - 1)::integer as intervention,
    operator, 'evaluation' as split, if(arm = 'none', 'none', 'neuron') as component,
    layer::smallint as layer, units::integer[] as units, if(arm = 'none', null, 'last') as position,
    null::varchar as key_position,
    replacement, criterion, arm, heuristic, neurons::integer as neurons, draw::integer as draw
from patches
order by intervention, layer
