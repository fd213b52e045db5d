-- How well value logits (the logit lens) and a tuned lens tell what neurons promote, by layer.
-- Every measure is a mean over the layer's shifted neurons that change some logit.
--
-- subject               VARCHAR   the model
-- operator              VARCHAR   operator of the prompts: add, subtract, multiply or divide
-- layer                 SMALLINT  decoder layer, from 0
-- neurons               BIGINT    number of shifted neurons that change some logit
-- correlation           DOUBLE    mean correlation over numbers of measured change and value logit,
--                                 -1 to 1
-- tuned_correlation     DOUBLE    mean correlation of measured change and tuned lens, -1 to 1
-- chance_correlation    DOUBLE    mean correlation with the value logits of another neuron of the
--                                 layer, -1 to 1: the control
-- ceiling               DOUBLE    mean correlation that a perfect lens would have with changes
--                                 measured on so few prompts, 0 to 1
-- weighted_correlation  DOUBLE    mean correlation with the logit lens, each neuron weighted by its
--                                 strength, -1 to 1
-- weighted_tuned        DOUBLE    mean correlation with the tuned lens, weighted likewise, -1 to 1
-- agreeing              DOUBLE    share of neurons with a correlation of at least 0.5 with the
--                                 logit lens, 0 to 1
-- agreeing_by_chance    DOUBLE    the same share for the control, 0 to 1
-- inverted              DOUBLE    share of neurons with a correlation below -0.5, 0 to 1: they
--                                 promote what their value vector demotes
-- inverted_by_chance    DOUBLE    the same share for the control, 0 to 1
-- gain                  DOUBLE    median slope of the measured change on the direct one: 1 if later
--                                 layers pass it on as it is
-- consistency           DOUBLE    mean share of a neuron's change that all prompts have in common
-- linearity             DOUBLE    mean correlation of the changes by a shift up and a shift down
-- logit_lens_fit        DOUBLE    explained variance of the last residual stream on evaluation
--                                 prompts of all operators by the stream after the layer, at most 1
-- tuned_lens_fit        DOUBLE    explained variance by the tuned lens, at most 1
with
    changing as (from causal_votes where strength > 0 and correlation is not null),
    reliable as (
        select *, larger(consistency, 0) as share,
            sqrt(prompts * share / (1 + (prompts - 1) * share)) as most
        from changing
    )
select
    $subject as subject, operator, layer, count(*) as neurons,
    avg(correlation) as correlation,
    avg(tuned_correlation) as tuned_correlation,
    avg(chance_correlation) as chance_correlation,
    avg(most) as ceiling,
    sum(strength * correlation) / sum(strength) as weighted_correlation,
    sum(strength * tuned_correlation) / sum(strength) as weighted_tuned,
    avg((correlation >= 0.5)::integer) as agreeing,
    avg((chance_correlation >= 0.5)::integer) as agreeing_by_chance,
    avg((correlation < -0.5)::integer) as inverted,
    avg((chance_correlation < -0.5)::integer) as inverted_by_chance,
    median(gain) as gain,
    avg(consistency) as consistency,
    avg(linearity)::double as linearity,
    any_value(logit_lens) as logit_lens_fit,
    any_value(tuned_lens) as tuned_lens_fit
from reliable join lens_fits using (layer)
group by operator, layer
order by operator, layer
