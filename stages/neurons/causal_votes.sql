-- What a neuron promotes, measured after all later layers (logit_shifts), compared with its value
-- logits, which are read as if later layers did nothing. Logits are taken above their mean over
-- numbers, which changes no prediction.
--
-- subject             VARCHAR   the model
-- operator            VARCHAR   operator of the prompts: add, subtract, multiply or divide
-- layer               SMALLINT  decoder layer, from 0
-- neuron              INTEGER   neuron of the layer's MLP, from 0
-- std                 DOUBLE    standard deviation of the activation over the operator's cells, by
--                               which it is shifted
-- prompts             INTEGER   number of evaluation prompts
-- strength            DOUBLE    standard deviation over numbers of the mean change by one standard
--                               deviation of the activation, in logits
-- direct_strength     DOUBLE    the same if later layers did nothing: of value logit x std x the
--                               final norm's mean factor, in logits
-- correlation         DOUBLE    correlation over numbers of the change and the value logit (the
--                               logit lens), -1 to 1; null if either does not vary
-- tuned_correlation   DOUBLE    correlation of the change and the logit through the layer's tuned
--                               lens, -1 to 1
-- chance_correlation  DOUBLE    correlation of the change and the value logit of another, random
--                               neuron of the layer, -1 to 1: the control
-- gain                DOUBLE    slope of the change on the direct one: 1 if later layers pass it on
--                               as it is, 0 if they erase it, below 0 if they invert it
-- consistency         DOUBLE    share of the change that all prompts have in common, up to 1: mean
--                               product of the changes on two prompts / mean square on one; about 0
--                               if later layers respond to each prompt in another way
-- linearity           FLOAT     correlation of the changes by a shift up and a shift down, -1 to 1
-- answer_change       FLOAT     change of the prompt's answer above the mean over numbers, in
--                               logits; mean over prompts
with
    read as (
        select layer, neuron, list(logit::double order by number) as logits,
            avg(logit::double) as mean
        from value_logits
        join (select distinct layer, neuron from logit_shifts) using (layer, neuron)
        group by layer, neuron
    ),
    lens as (
        select layer, neuron, [logit - mean for logit in logits] as direct,
            sqrt(list_dot_product(direct, direct)) as length
        from read
    ),
    tuned as (
        select layer, neuron, logits::double[] as tuned, sqrt(list_dot_product(tuned, tuned))
            as tuned_length
        from tuned_logits
    ),
    shuffled as (  -- each neuron's successor in a random circle of the layer's neurons
        select operator, layer, neuron,
            coalesce(
                lead(neuron) over circle,
                first(neuron) over (circle rows between unbounded preceding and unbounded following)
            ) as other
        from logit_shifts
        window circle as (
            partition by operator, layer order by lot('votes', operator, layer, neuron), neuron)
    ),
    measured as (
        select operator, layer, neuron, std, prompts, scale, changes::double[] as changes,
            mean_square::double as square, linearity, answer_change, other,
            list_dot_product(changes::double[], changes::double[]) as squares,
            len(changes) as numbers
        from logit_shifts join shuffled using (operator, layer, neuron)
    ),
    joined as (
        select measured.*, lens.direct, lens.length, tuned, tuned_length,
            control.direct as control, control.length as control_length,
            list_dot_product(changes, lens.direct) as product,
            squares / numbers as common
        from measured
        join lens using (layer, neuron)
        join tuned using (layer, neuron)
        join lens as control on control.layer = measured.layer and control.neuron = other
    )
select
    $subject as subject, operator, layer, neuron, std, prompts,
    sqrt(squares / numbers) as strength,
    length * std * scale / sqrt(numbers) as direct_strength,
    product / nullif(sqrt(squares) * length, 0) as correlation,
    list_dot_product(changes, tuned) / nullif(sqrt(squares) * tuned_length, 0)
        as tuned_correlation,
    list_dot_product(changes, control) / nullif(sqrt(squares) * control_length, 0)
        as chance_correlation,
    product / nullif(length * length * std * scale, 0) as gain,
    (prompts * common - square) / nullif((prompts - 1) * square, 0) as consistency,
    linearity, answer_change
from joined
order by operator, layer, neuron
