-- The other direction: only the heuristic neurons of the late layers are kept at the last position, or only the rest.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0; one row per patch
-- operator      VARCHAR    whose heuristics, and prompts it is run on
-- split         VARCHAR    prompts it is run on: evaluation
-- component     VARCHAR    neuron, or none where everything is kept
-- layer         SMALLINT   a late layer, from 0
-- units         INTEGER[]  the ablated neurons, from 0
-- position      VARCHAR    token position: last
-- key_position  VARCHAR    null, of edges only
-- replacement   VARCHAR    mean (over all prompts, pooled over operators with equal weight) or zero
-- kept          VARCHAR    heuristic (neurons that stand for some heuristic), rest (all others), random (as many random neurons of each
--                          layer as heuristic), everything or nothing, of all late layers
-- membership    VARCHAR    label, called or scored, as in heuristic_neurons; null for everything and nothing
-- draw          INTEGER    of random, from 0; null otherwise
-- neurons       INTEGER    late neurons that are kept
with
    late as (
        select distinct layer, neuron from naming join late_layers on layer >= first_layer  -- of those that the store keeps
    ),
    operators as (select distinct operator from pairs),
    bags as (select distinct operator, membership, layer, neuron from heuristic_neurons where late),
    every as (
        select operator, membership, layer, neuron, bags.neuron is not null as heuristic
        from (select distinct operator, membership from bags) cross join late left join bags using (operator, membership, layer, neuron)
    ),
    shuffled as (
        select *, row_number() over (
                partition by operator, membership, draw, layer
                order by lot($knockout_seed, 'bag', draw, operator, layer, neuron), neuron
            ) as place
        from every, (select unnest(range($control_draws)) as draw)
    ),
    marked as (
        select 'heuristic' as kept, operator, membership, null as draw, layer, neuron, heuristic as stays from every
        union all select 'rest', operator, membership, null, layer, neuron, not heuristic from every
        union all
        select 'random', operator, membership, draw, layer, neuron,
            place <= sum(heuristic::integer) over (partition by operator, membership, draw, layer)
        from shuffled
        union all select 'nothing', operator, null, null, layer, neuron, false from operators, late
    ),
    ablated as (
        select kept, operator, membership, draw, layer, list(neuron::integer order by neuron) filter (not stays) as units,
            count(*) filter (stays) as staying
        from marked group by kept, operator, membership, draw, layer
    ),
    counted as (select *, sum(staying) over (partition by kept, operator, membership, draw) as neurons from ablated),
    patches as (
        select kept, operator, membership, draw, layer, units, neurons, unnest(['mean', 'zero']) as replacement from counted
        union all
        select 'everything', operator, null, null, null, null, count(*), unnest(['mean', 'zero']) from operators, late group by operator
    )
select
    $subject as subject,
    (dense_rank() over (order by operator, kept, membership nulls first, draw nulls first, replacement) - 1)::integer as intervention,
    operator, 'evaluation' as split, if(units is null, 'none', 'neuron') as component,
    if(units is null, null, layer)::smallint as layer, units, if(units is null, null, 'last') as position,
    null::varchar as key_position, replacement, kept, membership, draw::integer as draw, neurons::integer as neurons
from patches
order by intervention, layer
