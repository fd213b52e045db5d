-- Cut attention that the circuit should not need: attention into the positions it reads from (App.
-- B.2, stated there without code).
--
-- If a head only copies an operand, it reads what that token alone became. Then cutting every
-- earlier edge into that token's position, in layers below the head, changes nothing. circuit_cut
-- is compared with circuit, and model_cut with everything. The control last_cut is the circuit
-- whose last position cannot attend to these positions, which must destroy the answer. Every
-- circuit except nothing keeps all MLPs. circuit_cut, model_cut and last_cut are there only if they
-- cut an edge. If a head of the circuit reads a number of several tokens, none of them is there: a
-- number's last token must read its other tokens.
--
-- subject       VARCHAR    the model
-- intervention  INTEGER    number of the intervention, from 0; one row per patch
-- operator      VARCHAR    operator whose circuit it is, and whose prompts it is run on
-- split         VARCHAR    split of the prompts that it is run on: evaluation
-- component     VARCHAR    component of the patch: head or mlp that is ablated, edge that is cut,
--                          or none
-- layer         SMALLINT   decoder layer, from 0
-- units         INTEGER[]  attention heads, from 0; null for all heads
-- position      VARCHAR    token position of the patch: all; for an edge, the query position
-- key_position  VARCHAR    for an edge, the key position, or earlier for all positions before the
--                          query; null otherwise
-- replacement   VARCHAR    value that is written: mean (pooled over operators, each weighted
--                          equally); zero for an edge; null where nothing is patched
-- circuit       VARCHAR    everything, nothing, circuit, circuit_cut, model_cut or last_cut
-- heads         SMALLINT   number of heads in the circuit
-- seed          INTEGER    always null; only random circuits have a seed
with
    operators as (select operator, count(*) as heads from circuit_heads group by operator),
    heads_left_out as (
        select operator, layer, list(head::integer order by head) as units
        from operators cross join each_head() anti join circuit_heads using (operator, layer, head)
        group by all
    ),
    sources as (
        select operator, source, max(layer) as highest
        from attention_sources
        where operator not in (select operator from attention_sources where tokens > 1)
        group by all
    ),
    patches as (
        select operator, unnest(['circuit', 'circuit_cut', 'last_cut']) as circuit,
            'head' as component, layer, units, 'all' as position, null as key_position,
            'mean' as replacement
        from heads_left_out
        union all
        select operator, 'nothing', unnest(['head', 'mlp']), layer, null, 'all', null, 'mean'
        from operators, each_layer()
        union all
        select operator, unnest(['circuit_cut', 'model_cut']), 'edge', layer, null, source,
            'earlier', 'zero'
        -- the head reads the residual stream that enters its layer
        from sources join each_layer() on layer < highest
        union all
        select operator, 'last_cut', 'edge', layer, null, 'last', source, 'zero'
        from sources, each_layer()
    ),
    circuits as (
        select
            operator, row_number() over (order by operator, place) - 1 as intervention, circuit,
            case when circuit in ('everything', 'model_cut') then architecture.heads * layers
                when circuit = 'nothing' then 0
                else operators.heads end as heads
        from operators, architecture,
            unnest([
                'everything', 'nothing', 'circuit', 'circuit_cut', 'model_cut', 'last_cut'
            ]) with ordinality
            as circuits(circuit, place)
        where not ends_with(circuit, '_cut')
            or (operator, circuit) in
                (select (operator, circuit) from patches where component = 'edge')
    )
select
    $subject as subject, intervention::integer as intervention, operator, 'evaluation' as split,
    coalesce(component, 'none') as component,
    layer::smallint as layer, units, position, key_position, replacement, circuit,
    heads::smallint as heads, null::integer as seed
from circuits
left join patches using (operator, circuit)
order by intervention, component, layer, position, key_position
