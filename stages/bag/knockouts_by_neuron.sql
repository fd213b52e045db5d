-- Whether ablating one neuron hurts the prompts of its heuristic more than other prompts, neuron by
-- neuron, as a reviewer asked. The null distribution is over all neurons of the same layer that
-- have some heuristic but not this one, each ablated alone on the same prompts. If not every neuron
-- was ablated (neuron_knockout_interventions), both groups hold only those that were, which are
-- many neurons of large attribution.
--
-- subject                  VARCHAR   the model
-- operator                 VARCHAR   add, subtract, multiply or divide
-- layer                    SMALLINT  decoder layer, from 0
-- neuron                   INTEGER   number of the ablated neuron of the layer's MLP, from 0
-- heuristic                VARCHAR   a heuristic that the neuron has
-- criterion                VARCHAR   strictest criterion by which the neuron has the heuristic:
--                                    label, fdr or threshold
-- ablation                 VARCHAR   value that the neuron takes: zero or mean (pooled over
--                                    operators)
-- prompts_associated       BIGINT    number of evaluation prompts that satisfy the heuristic
-- prompts_other            BIGINT    number of the operator's evaluation prompts that do not
--                                    satisfy the heuristic
-- logit_change_associated  DOUBLE    mean change of the answer's logit above the mean logit, on
--                                    associated prompts
-- logit_change_other       DOUBLE    mean change of the answer's logit above the mean logit, on
--                                    other prompts
-- lost_associated          DOUBLE    share of associated prompts that are answered correctly before
--                                    and wrongly after the ablation, 0 to 1
-- lost_other               DOUBLE    share of other prompts that are answered correctly before and
--                                    wrongly after the ablation, 0 to 1
-- selectivity              DOUBLE    logit_change_other - logit_change_associated, in logits;
--                                    positive if associated prompts are hurt more
-- null_neurons             BIGINT    number of neurons in the null distribution
-- null_mean                DOUBLE    mean selectivity of the neurons in the null distribution, in
--                                    logits; null if there are none
-- null_std                 DOUBLE    standard deviation of their selectivity, in logits
-- p_value                  DOUBLE    (1 + neurons in the null distribution that are at least as
--                                    selective) / (1 + null_neurons), above 0 to 1
with
    answers as (from answers_of('neuron_knockout')),
    clean as (
        select pair, correct, logit
        from answers join neuron_knockout_interventions using (intervention)
        where component = 'none'
    ),
    changes as (
        select
            operator, layer, units[1] as neuron, replacement as ablation, pair,
            answers.logit - clean.logit as logit, larger(clean.correct - answers.correct, 0) as lost
        from answers
        join neuron_knockout_interventions using (intervention)
        join clean using (pair)
        where component = 'neuron'
    ),
    totals as (
        select operator, layer, neuron, ablation, count(*) as n, sum(logit) as logit,
            sum(lost) as lost
        from changes group by all
    ),
    members as (
        select operator, layer, neuron, heuristic,
            arg_min(criterion,
                case criterion when 'label' then 1 when 'fdr' then 2 else 3 end) as criterion
        from heuristic_neurons group by all
    ),
    tried as (  -- each heuristic with each layer in which some neuron has it
        select distinct operator, heuristic, layer from members
    ),
    own as (
        select operator, layer, neuron, heuristic, ablation, count(*) as n, sum(logit) as logit,
            sum(lost) as lost
        from changes
        join prompt_associations using (operator, pair)
        join tried using (operator, heuristic, layer)
        group by all
    ),
    selective as (
        select
            own.operator, own.layer, own.neuron, heuristic, own.ablation, own.n as associated,
            totals.n - own.n as other,
            own.logit / own.n as logit_associated,
            (totals.logit - own.logit) / nullif(totals.n - own.n, 0) as logit_other,
            own.lost / own.n as lost_associated,
            (totals.lost - own.lost) / nullif(totals.n - own.n, 0) as lost_other,
            logit_other - logit_associated as selectivity, criterion
        from own
        join totals using (operator, layer, neuron, ablation)
        left join members using (operator, layer, neuron, heuristic)
    ),
    nulls as (
        select operator, layer, heuristic, ablation, count(*) as neurons, avg(selectivity) as mean,
            stddev_samp(selectivity) as deviation,
            list(selectivity order by selectivity) as selectivities
        from selective where criterion is null group by all
    )
select
    $subject as subject, operator, layer, neuron, heuristic, criterion, ablation,
    associated as prompts_associated, other as prompts_other,
    logit_associated as logit_change_associated, logit_other as logit_change_other, lost_associated,
    lost_other, selectivity,
    coalesce(neurons, 0) as null_neurons, mean as null_mean, deviation as null_std,
    (1 + len(list_filter(coalesce(selectivities, []), lambda s: s >= selectivity)))
        / (1 + null_neurons) as p_value
from selective
left join nulls using (operator, layer, heuristic, ablation)
where criterion is not null and selectivity is not null
order by operator, layer, neuron, heuristic, ablation
