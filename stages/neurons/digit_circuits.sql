-- Whether each digit of an answer has neurons of its own (Baeumel et al. 2025): the effect of one
-- digit's top neurons on another digit's logit. Neurons are selected on half of the prompts and
-- measured on the other half, in both directions. So are a digit's own neurons, so that selection
-- by chance affects all digits alike. A prompt is in the same half for all digits. Only layers that
-- are late for all digits count, at the position where the digit is predicted, and operators of
-- which every digit has prompts in both halves. If not every neuron was patched (patched_neurons
-- above 0), attribution selects the top neurons (digit_neurons), and k is the smallest of
-- operator_ks. Patches on the prompts of all digits measure these neurons (digit_interventions).
-- The share by chance is then that of the neurons in the random sample.
--
-- subject          VARCHAR  the model that predicts the first digit; the models for the other
--                           digits are the same network (digits in params.yaml)
-- operator         VARCHAR  add, subtract, multiply or divide
-- digit            INTEGER  digit of the answer whose logit is measured, from 1, the first one
--                           written
-- of_digit         INTEGER  digit whose top neurons are measured, from 1
-- k                INTEGER  number of top neurons of each layer
-- layers           BIGINT   late layers of these neurons
-- effect           DOUBLE   summed effect of these neurons on the digit's logit, each patched
--                           alone, in logits
-- share            DOUBLE   effect / effect of the digit's own top neurons: 1 if one circuit writes
--                           both digits, 0 if each digit has its own circuit
-- share_by_chance  DOUBLE   expected share of k random neurons
-- iou              DOUBLE   neurons in both digits' sets / neurons in either set, 0 to 1; for a
--                           digit and itself, the repeatability of the selection
-- iou_by_chance    DOUBLE   IoU of two sets of k of n neurons that share k²/n neurons, as random
--                           sets do on average: k / (2n - k)
with
    digits as (
        select subject, min(digit)::integer as digit
        from (
            select unnest([$first, $second, $third]) as subject, unnest(range(1, 4)) as digit
        )
        group by subject
    ),
    discovery as (
        select digit, pair, operator, (lot('half', operator, op1, op2) % 2)::integer as half
        from pairs join digits using (subject)
        where split = 'discovery'
    ),
    operators as (  -- every digit has prompts in both halves
        select operator
        from discovery
        group by operator
        having count(distinct 2 * digit + half) = 2 * (select count(*) from digits)
    ),
    prompts as (from discovery where operator in (from operators)),
    patches as (
        select digit, intervention, layer, units[1] as neuron
        from neuron_interventions join digits using (subject) join late_layers using (subject)
        where position = 'last' and layer >= first_layer and neuron_interventions.operator is null
    ),
    shared as (
        select layer
        from patches
        group by layer
        having count(distinct digit) = (select count(*) from digits)
    ),
    answers as (
        select digit, runs.* from runs join digits using (subject) where experiment <> 'digit'
    ),
    patched as (  -- every neuron, or the random sample
        select digit, operator, half, layer, neuron, avg(logit_effect(p, c)) as effect
        from answers as p
        join answers as c using (digit, pair)
        join patches on (patches.digit, patches.intervention) = (p.digit, p.intervention)
        join prompts using (digit, pair)
        where c.intervention = 0 and layer in (from shared)
        group by all
    ),
    tops as (  -- the top neurons by attribution of all digits
        select digit, digit_pairs.operator, half, layer, units[1] as neuron,
            avg(logit_effect(p, c)) as effect
        from runs as p
        join runs as c using (pair)
        join digit_interventions as i on i.intervention = p.intervention
        join digit_pairs using (pair)
        where p.experiment = 'digit' and c.experiment = 'digit' and c.intervention = 0
            and component = 'neuron'
        group by all
    ),
    ranked as (
        select
            digit, operator, half, layer, neuron, effect,
            effect as sampled_effect,
            null::integer as neurons,
            row_number() over (
                partition by digit, operator, half, layer order by effect desc, neuron) as place
        from patched
        where not exists (from digit_neurons)
        union all
        select
            digit, operator, half, layer, neuron, tops.effect,
            patched.effect as sampled_effect,
            neurons,
            rank as place
        from tops
        full join patched using (digit, operator, half, layer, neuron)
        left join digit_neurons using (digit, operator, half, layer, neuron)
        where exists (from digit_neurons)
    ),
    crossed as (
        select
            operator, layer, measured.digit,
            selected.digit as of_digit,
            k, selected.half,
            coalesce(any_value(measured.neurons), count(*)) as neurons,
            sum(measured.effect) filter (where selected.place <= k) as effect,
            sum(measured.sampled_effect) * k / count(measured.sampled_effect) as by_chance,
            count(*) filter (where selected.place <= k and measured.place <= k) as common
        from ranked as measured
        join ranked as selected using (operator, layer, neuron)
        cross join (select unnest($operator_ks)::integer as k)
        where measured.half <> selected.half
        group by operator, layer, measured.digit, of_digit, k, selected.half
        having count(measured.effect) filter (where selected.place <= k) = k
    ),
    pooled as (
        select
            operator, digit, of_digit, k,
            count(distinct layer) as layers,
            sum(effect) / 2 as effect,
            sum(by_chance) / 2 as by_chance,
            sum(common) / sum(2 * k - common) as iou,
            k / (2 * avg(neurons) - k) as iou_by_chance
        from crossed
        group by operator, digit, of_digit, k
    )
select
    $first as subject,
    operator, digit, of_digit, k, layers, effect,
    effect / any_value(effect) filter (where of_digit = digit) over own as share,
    by_chance / any_value(effect) filter (where of_digit = digit) over own as share_by_chance,
    iou, iou_by_chance
from pooled
window own as (partition by operator, digit, k)
order by operator, k, digit, of_digit
