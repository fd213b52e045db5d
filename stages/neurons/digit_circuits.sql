-- Whether each digit of an answer has neurons of its own (Baeumel et al. 2025): what one digit's top neurons do to the others.
-- Neurons are chosen on half of the prompts and measured on the other half, both ways round: a digit's own, too, so that luck in the
-- choice makes no difference between digits. Late layers that are late for all digits, at the position where the digit is asked for.
-- Where not every neuron was patched (patched_neurons), k counts among those of the random sample,
-- which is the same for all digits.
--
-- subject          VARCHAR  the subject that is asked for the first digit; those for the others are of the same model (`digits` in params.yaml)
-- operator         VARCHAR  add, subtract, multiply or divide
-- digit            INTEGER  the digit of the answer that is measured: 1 for the first one written
-- of_digit         INTEGER  the digit whose top neurons these are; its own in rows in which both are the same
-- k                INTEGER  how many neurons of each layer
-- layers           BIGINT   late layers that they are of
-- effect           DOUBLE   their summed effect on the digit's logit, each patched alone, in logits
-- share            DOUBLE   effect / that of the digit's own top neurons: 1 where one circuit writes both digits, 0 where each has its own
-- share_by_chance  DOUBLE   the same of k random neurons, on average
-- iou              DOUBLE   neurons in both digits' sets / neurons in either; of a digit with itself, how well the choice repeats
-- iou_by_chance    DOUBLE   IoU of two sets of k in n that share as many as random ones do on average, k²/n: k / (2n - k)
with
    digits as (select unnest([$first, $second, $third]) as subject, unnest(range(1, 4))::integer as digit),
    prompts as (select digit, pair, operator, pair % 2 as half from pairs join digits using (subject) where split = 'discovery'),
    patches as (
        select digit, intervention, layer, units[1] as neuron
        from neuron_interventions join digits using (subject) join late_layers using (subject)
        where position = 'last' and layer >= first_layer and neuron_interventions.operator is null
    ),
    shared as (select layer from patches group by layer having count(distinct digit) = 3),
    answers as (select digit, runs.* from runs join digits using (subject)),
    effects as (
        select digit, operator, half, layer, neuron, avg(logit_effect(p, c)) as effect
        from answers as p
        join answers as c using (digit, pair)
        join patches on (patches.digit, patches.intervention) = (p.digit, p.intervention)
        join prompts using (digit, pair)
        where c.intervention = 0 and layer in (from shared)
        group by all
    ),
    ranked as (
        select *, row_number() over (partition by digit, operator, half, layer order by effect desc, neuron) as place from effects
    ),
    crossed as (
        select
            operator, layer, measured.digit, chosen.digit as of_digit, k, chosen.half, count(*) as neurons,
            sum(measured.effect) filter (where chosen.place <= k) as effect, sum(measured.effect) * k / count(*) as by_chance,
            count(*) filter (where chosen.place <= k and measured.place <= k) as common
        from ranked as measured
        join ranked as chosen using (operator, layer, neuron)
        cross join (select unnest($operator_ks)::integer as k)
        where measured.half <> chosen.half
        group by operator, layer, measured.digit, of_digit, k, chosen.half
        having k <= count(*)
    ),
    pooled as (
        select
            operator, digit, of_digit, k, count(distinct layer) as layers, sum(effect) / 2 as effect, sum(by_chance) / 2 as by_chance,
            sum(common) / sum(2 * k - common) as iou, k / (2 * avg(neurons) - k) as iou_by_chance
        from crossed group by operator, digit, of_digit, k
    )
select
    $first as subject, operator, digit, of_digit, k, layers, effect,
    effect / any_value(effect) filter (where of_digit = digit) over own as share,
    by_chance / any_value(effect) filter (where of_digit = digit) over own as share_by_chance,
    iou, iou_by_chance
from pooled
window own as (partition by operator, digit, k)
order by operator, k, digit, of_digit
