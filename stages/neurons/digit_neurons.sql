-- Each digit's top neurons, by their effect on the digit's logit when patched, or by attribution if
-- not every neuron of the late layers is patched for every digit (patched_neurons above 0). Half of
-- the prompts select them, and digit_circuits measures them on the other half. Only layers that are
-- late for all digits count, and operators of which every digit has prompts in both halves.
--
-- subject   VARCHAR   the model that predicts the first digit; the models for the other digits are
--                     the same network (digits in params.yaml)
-- digit     INTEGER   digit of the answer, from 1, the first one written
-- operator  VARCHAR   add, subtract, multiply or divide
-- half      INTEGER   half of the discovery prompts, 0 or 1, that selected the neuron; a prompt is
--                     in the same half for all digits
-- layer     SMALLINT  late layer, from 0
-- neuron    INTEGER   neuron of the layer's MLP, from 0
-- method    VARCHAR   exact (patched) or attribution (estimated)
-- rank      BIGINT    rank by effect, from 1, the largest, to the largest of operator_ks, or to the
--                     smallest if effects are estimated
-- effect    DOUBLE    mean effect on the digit's logit over the half, in logits
-- neurons   INTEGER   number of neurons of the layer's MLP
with
    digits as (from digit_models($first, $second, $third)),
    late as (
        select layer
        from (
            select digit, unnest(range(first_layer, layers)) as layer
            from late_layers join digits using (subject)
        )
        group by layer
        having count(*) = (select count(*) from digits)
    ),
    sizes as (select any_value(neurons) as neurons from architecture),
    counts as (  -- of neurons that are patched for all operators
        select digit, layer, count(*) as patched
        from neuron_interventions as i join digits using (subject)
        where position = 'last' and i.operator is null
        group by digit, layer
    ),
    incomplete as (
        select digit, layer
        from digits cross join late cross join sizes left join counts using (digit, layer)
        where coalesce(patched, 0) < neurons
    ),
    discovery as (from digit_prompts($first, $second, $third)),
    operators as (  -- every digit has prompts in both halves
        select operator
        from discovery
        group by operator
        having count(distinct 2 * digit + half) = 2 * (select count(*) from digits)
    ),
    prompts as (from discovery where operator in (from operators)),
    exact as (
        from digit_effects($first, $second, $third)
        where operator in (from operators) and layer in (from late)
    ),
    estimated as (
        select digit, operator, half, layer, neuron, avg(attribution::double) as effect
        from neuron_attributions join prompts using (subject, pair)
        where position = 'last' and layer in (from late)
        group by all
    ),
    effects as (
        select *, 'exact' as method, list_max($operator_ks) as last_rank
        from exact where not exists (from incomplete)
        union all
        select *, 'attribution', list_min($operator_ks)
        from estimated where exists (from incomplete)
    )
select
    $first as subject, digit, operator, half, layer, neuron, method,
    row_number() over (
        partition by digit, operator, half, layer order by effect desc, neuron) as rank,
    effect, neurons
from effects cross join sizes
where list_min($operator_ks) <= neurons
qualify rank <= last_rank
order by digit, operator, half, layer, rank
