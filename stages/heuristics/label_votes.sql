-- Whether labels about results still hold if what the neuron promotes is measured after all later
-- layers (logit_shifts), rather than read from its value logits. Scores are chance-corrected.
--
-- subject          VARCHAR   the model
-- operator         VARCHAR   add, subtract, multiply or divide
-- layer            SMALLINT  decoder layer, from 0
-- neuron           INTEGER   neuron of the layer's MLP, from 0
-- heuristic        VARCHAR   name of the heuristic, as in labels
-- side             VARCHAR   side of the label: top or bottom, the map's largest or smallest values
-- direct           DOUBLE    score on activation x value logit, as in labels; 0 is chance, 1 all
-- causal           DOUBLE    score on activation x measured change, on the label's side
-- opposite         DOUBLE    score on activation x measured change, on the other side
-- control          DOUBLE    score on activation x measured change of another labelled neuron
-- verdict          VARCHAR   kept: causal reaches the threshold of labels; inverted: it does not,
--                            but opposite does; lost: neither does
-- control_verdict  VARCHAR   the verdict on the control; null if the layer has no other neuron
-- is_direct        BOOLEAN   whether the neuron is direct, as in labels: by its value logits, it
--                            promotes the answer where it is active
-- direct_naming    FLOAT     correlation of activation and the answer's value logit over cells, -1
--                            to 1
-- causal_naming    FLOAT     correlation of activation and the answer's measured change over cells,
--                            -1 to 1
-- control_naming   FLOAT     correlation of activation and the change by another neuron, -1 to 1
with
    corrected as (
        select *,
            (direct - chance_score) / (1 - chance_score) as direct_score,
            (causal - chance_score) / (1 - chance_score) as causal_score,
            (causal_other_side - chance_score) / (1 - chance_score) as opposite_score,
            (control - chance_score) / (1 - chance_score) as control_score,
            (control_other_side - chance_score) / (1 - chance_score) as control_opposite
        from (from label_rescores select * replace (
            chance_score::double as chance_score, direct::double as direct,
            causal::double as causal, causal_other_side::double as causal_other_side,
            control::double as control, control_other_side::double as control_other_side))
    )
select
    $subject as subject, operator, layer, neuron, heuristic, side,
    direct_score as direct, causal_score as causal, opposite_score as opposite,
    control_score as control,
    case when causal_score >= threshold then 'kept' when opposite_score >= threshold then 'inverted'
        else 'lost' end as verdict,
    case when control_score is null then null when control_score >= threshold then 'kept'
        when control_opposite >= threshold then 'inverted' else 'lost' end as control_verdict,
    labels.direct as is_direct, direct_naming, causal_naming, control_naming
from corrected
join (select operator, layer, neuron, heuristic, side, direct from labels) as labels
    using (operator, layer, neuron, heuristic, side)
join label_setting on true
order by operator, layer, neuron, heuristic, side
