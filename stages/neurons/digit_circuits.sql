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
-- ci_low           DOUBLE   lower end of the bootstrap interval of share, over pairs within each
--                           half; null if a half has a single pair
-- ci_high          DOUBLE   upper end of the bootstrap interval of share
-- share_by_chance  DOUBLE   expected share of k random neurons
-- matched_share    DOUBLE   share of k other neurons of the nearest variance (digit_matched); null
--                           if a layer has too few others
-- matched_ci_low   DOUBLE   lower end of the bootstrap interval of matched_share
-- matched_ci_high  DOUBLE   upper end of the bootstrap interval of matched_share
-- std              DOUBLE   mean standard deviation of the top neurons' activations
-- matched_std      DOUBLE   mean standard deviation of the matched neurons' activations
-- iou              DOUBLE   neurons in both digits' sets / neurons in either set, 0 to 1; for a
--                           digit and itself, the repeatability of the selection
-- iou_by_chance    DOUBLE   IoU of two sets of k of n neurons that share k²/n neurons, as random
--                           sets do on average: k / (2n - k)
with
    patched as (  -- every neuron, or the random sample; half: the other one, which selected it
        select digit, prompts.operator, 1 - half as half, layer, units[1] as neuron, pair,
            logit_effect(patched, clean) as effect
        from neuron_interventions as i
        join runs as patched using (subject, intervention)
        join runs as clean using (subject, experiment, pair)
        join digit_prompts($first, $second, $third) as prompts using (subject, pair)
        where experiment = 'neuron' and clean.intervention = 0
            and position = 'last' and i.operator is null
            and layer in (select layer from digit_neurons)
            and prompts.operator in (select operator from digit_neurons)
    ),
    planned as (  -- the top neurons by attribution of all digits, and matched ones
        select digit, digit_pairs.operator, 1 - half as half, layer, units[1] as neuron, pair,
            logit_effect(p, c) as effect
        from runs as p
        join runs as c using (pair)
        join digit_interventions as i on i.intervention = p.intervention
        join digit_pairs using (pair)
        where p.experiment = 'digit' and c.experiment = 'digit' and c.intervention = 0
            and component = 'neuron'
    ),
    by_pair as (from planned union all from patched where not exists (from planned)),
    effects as (
        select digit, operator, half, layer, neuron, avg(effect) as effect
        from by_pair group by all
    ),
    chance as (
        select digit, operator, half, layer, avg(effect) as effect from patched group by all
    ),
    tops as (
        select digit, operator, half, k, layer, neuron, neurons
        from digit_neurons cross join (select unnest($operator_ks)::integer as k)
        where rank <= k
    ),
    measured as (
        select
            effects.digit,
            tops.digit as of_digit,
            operator, half, k, layer,
            any_value(neurons) as neurons,
            sum(effect) as effect
        from tops join effects using (operator, half, layer, neuron)
        group by all
        having count(*) = k
    ),
    matched as (
        select
            digit, of_digit, operator, half, k, layer,
            sum(effect) as matched_effect,
            avg(std) as matched_std,
            any_value(selected_std) as std
        from digit_matched join effects using (digit, operator, half, layer, neuron)
        group by all
        having count(*) = k
    ),
    shared as (
        select
            own.digit,
            other.digit as of_digit,
            operator, other.half, k, layer,
            count(*) as common
        from tops as own join tops as other using (operator, k, layer, neuron)
        where own.half <> other.half
        group by all
    ),
    pooled as (
        select
            operator, digit, of_digit, k,
            count(distinct layer) as layers,
            sum(measured.effect) / 2 as effect,
            sum(chance.effect * k) / 2 as by_chance,
            if(bool_or(matched_effect is null), null, sum(matched_effect) / 2) as matched_effect,
            avg(std) as std,
            avg(matched_std) as matched_std,
            sum(coalesce(common, 0)) / sum(2 * k - coalesce(common, 0)) as iou,
            k / (2 * avg(neurons) - k) as iou_by_chance
        from measured
        join chance using (digit, operator, half, layer)
        left join matched using (digit, of_digit, operator, half, k, layer)
        left join shared using (digit, of_digit, operator, half, k, layer)
        group by operator, digit, of_digit, k
    ),
    sums as (
        select by_pair.digit, tops.digit as of_digit, operator, half, k, pair,
            sum(effect) as effect
        from tops join by_pair using (operator, half, layer, neuron)
        group by all
    ),
    matched_sums as (
        select digit, of_digit, operator, half, k, pair, sum(effect) as matched_effect
        from digit_matched join by_pair using (digit, operator, half, layer, neuron)
        group by all
    ),
    places as (
        select *, row_number() over (halves order by pair) - 1 as place,
            count(*) over halves as size
        from (select distinct digit, operator, half, pair from by_pair)
        window halves as (partition by digit, operator, half)
    ),
    draws as (  -- as in mediation_weights
        select digit, operator, half, replicate, size,
            lot($resampling_seed, 'digit', digit, operator, half, replicate, turn) % size as place
        from
            (select distinct digit, operator, half, size from places),
            (select unnest(range($replicates)) as replicate),
            unnest(range(size - 1)) as turns(turn)
    ),
    weights as (
        select digit, operator, half, pair, replicate, count(*) / (size - 1) as weight
        from draws join places using (digit, operator, half, size, place)
        group by digit, operator, half, pair, replicate, size
    ),
    replicated as (
        select digit, of_digit, operator, k, replicate,
            sum(weight * effect) as effect, sum(weight * matched_effect) as matched_effect
        from sums left join matched_sums using (digit, of_digit, operator, half, k, pair)
        join weights using (digit, operator, half, pair)
        group by all
        having count(distinct half) = 2
    ),
    shares as (
        select digit, of_digit, operator, k,
            effect / any_value(effect) filter (where of_digit = digit) over own as share,
            matched_effect / any_value(effect) filter (where of_digit = digit) over own as matched
        from replicated
        window own as (partition by operator, digit, k, replicate)
    ),
    intervals as (
        select digit, of_digit, operator, k,
            percentile_interval(share, $confidence) as edges,
            percentile_interval(matched, $confidence) as matched_edges
        from shares group by all
    )
select
    $first as subject,
    operator, digit, of_digit, k, layers, effect,
    effect / any_value(effect) filter (where of_digit = digit) over own as share,
    edges[1] as ci_low, edges[2] as ci_high,
    by_chance / any_value(effect) filter (where of_digit = digit) over own as share_by_chance,
    matched_effect / any_value(effect) filter (where of_digit = digit) over own as matched_share,
    if(matched_effect is null, null, matched_edges[1]) as matched_ci_low,
    if(matched_effect is null, null, matched_edges[2]) as matched_ci_high,
    std, matched_std, iou, iou_by_chance
from pooled left join intervals using (operator, digit, of_digit, k)
window own as (partition by operator, digit, k)
order by operator, k, digit, of_digit
