-- What ablating all neurons of a heuristic does to associated prompts and to other prompts (Sec.
-- 4.2, Fig. 7). A prompt is associated with a heuristic if its cell satisfies it. All other prompts
-- of the operator are other prompts. The unablated model answers every prompt correctly. A prompt
-- that several draws of pairs have counts in each of them. Intervals come from the bootstrap over
-- seeds and prompts.
--
-- subject                       VARCHAR  the model
-- operator                      VARCHAR  add, subtract, multiply or divide
-- criterion                     VARCHAR  criterion by which neurons have the heuristic, as in
--                                        heuristic_neurons: label, fdr or threshold
-- heuristic                     VARCHAR  heuristic whose neurons are ablated, or matched in number
--                                        by a control
-- ablation                      VARCHAR  value that the neurons' activations take at the last
--                                        position: zero or mean (pooled over operators)
-- arm                           VARCHAR  heuristic, or control: as many random neurons of other
--                                        heuristics only, mean over all draws
-- neurons                       INTEGER  number of neurons that are ablated together
-- prompts_associated            INTEGER  number of the operator's evaluation prompts that satisfy
--                                        the heuristic
-- prompts_other                 INTEGER  number of the operator's evaluation prompts that do not
--                                        satisfy the heuristic
-- accuracy_associated           DOUBLE   share of associated prompts still answered correctly, 0 to
--                                        1; null if there are none
-- associated_low                DOUBLE   lower end of the interval of accuracy_associated, 0 to 1
-- associated_high               DOUBLE   upper end of the interval of accuracy_associated, 0 to 1
-- accuracy_other                DOUBLE   share of other prompts still answered correctly, 0 to 1;
--                                        null if there are none
-- other_low                     DOUBLE   lower end of the interval of accuracy_other, 0 to 1
-- other_high                    DOUBLE   upper end of the interval of accuracy_other, 0 to 1
-- accuracy_associated_before    DOUBLE   share of associated prompts answered correctly with
--                                        nothing ablated, 0 to 1
-- accuracy_other_before         DOUBLE   share of other prompts answered correctly with nothing
--                                        ablated, 0 to 1
-- dissociation                  DOUBLE   loss of accuracy on associated prompts - loss on other
--                                        prompts, -1 to 1; 1 if the neurons serve associated
--                                        prompts alone
-- dissociation_low              DOUBLE   lower end of the interval of the dissociation, -1 to 1
-- dissociation_high             DOUBLE   upper end of the interval of the dissociation, -1 to 1
-- logit_change_associated       DOUBLE   mean change of the answer's logit above the mean logit,
--                                        after - before, on associated prompts
-- logit_change_other            DOUBLE   mean change of the answer's logit above the mean logit,
--                                        after - before, on other prompts
-- logit_dissociation            DOUBLE   logit_change_other - logit_change_associated, in logits
-- majority_accuracy_associated  DOUBLE   accuracy of always predicting the most frequent answer of
--                                        the associated prompts, 0 to 1; null if there are none
-- majority_accuracy_other       DOUBLE   accuracy of always predicting the most frequent answer of
--                                        the other prompts, 0 to 1; null if there are none
with
    interventions as (  -- knockout_interventions has one row per patch
        select distinct intervention, operator, criterion, heuristic, replacement as ablation, arm,
            neurons
        from knockout_interventions
    ),
    answers as (from answers_of('knockout')),
    clean as (
        select pair, correct as correct_before, logit as logit_before
        from answers join interventions using (intervention) where arm = 'none'
    ),
    compared as (  -- a control's draws are averaged for each prompt
        select
            interventions.operator, criterion, interventions.heuristic, ablation, arm, neurons,
            pair,
            (associated.pair is not null)::integer as about,
            answer_token, avg(correct) as correct, any_value(correct_before) as before,
                avg(logit - logit_before) as logit_change
        from answers
        join interventions using (intervention)
        join clean using (pair)
        join (select pair, answer_token from pairs) using (pair)
        left join prompt_associations as associated
            on (associated.operator, associated.heuristic, associated.pair)
                = (interventions.operator, interventions.heuristic, answers.pair)
        where arm <> 'none'
        group by all
    ),
    measured as (
        select
            operator, criterion, heuristic, ablation, arm, neurons,
            sum(about)::integer as associated, count(*)::integer as prompts,
            avg(correct) filter (about = 1) as accuracy_associated,
            avg(correct) filter (about = 0) as accuracy_other,
            avg(before) filter (about = 1) as associated_before,
            avg(before) filter (about = 0) as other_before,
            avg(logit_change) filter (about = 1) as logit_associated,
            avg(logit_change) filter (about = 0) as logit_other,
            majority_accuracy(if(about = 1, answer_token, null)) as majority_associated,
            majority_accuracy(if(about = 0, answer_token, null)) as majority_other,
            list(about::double order by pair) as abouts,
            list(about * correct order by pair) as right_associated,
            list((1 - about) * correct order by pair) as right_other,
            list(about * (before - correct) order by pair) as lost_associated,
            list((1 - about) * (before - correct) order by pair) as lost_other
        from compared group by all
    ),
    drawn as (
        select
            operator, criterion, heuristic, ablation, arm,
            nullif(list_dot_product(abouts, weights), 0) as n,
            nullif(prompts - list_dot_product(abouts, weights), 0) as m,
            list_dot_product(right_associated, weights) / n as associated,
            list_dot_product(right_other, weights) / m as other,
            list_dot_product(lost_associated, weights) / n - list_dot_product(lost_other, weights)
                / m as dissociation
        from measured join bootstrap('evaluation') using (operator)
        where replicate < $knockout_replicates
    ),
    intervals as (
        select
            operator, criterion, heuristic, ablation, arm,
            percentile_interval(associated, $confidence) as associated,
            percentile_interval(other, $confidence) as other,
            percentile_interval(dissociation, $confidence) as dissociation
        from drawn group by all
    )
select
    $subject as subject, operator, criterion, heuristic, ablation, arm, neurons,
    measured.associated as prompts_associated, prompts - measured.associated as prompts_other,
    accuracy_associated, intervals.associated[1] as associated_low,
    intervals.associated[2] as associated_high,
    accuracy_other, intervals.other[1] as other_low, intervals.other[2] as other_high,
    associated_before as accuracy_associated_before, other_before as accuracy_other_before,
    associated_before - accuracy_associated - (other_before - accuracy_other) as dissociation,
    intervals.dissociation[1] as dissociation_low, intervals.dissociation[2] as dissociation_high,
    logit_associated as logit_change_associated, logit_other as logit_change_other,
    logit_other - logit_associated as logit_dissociation,
    majority_associated as majority_accuracy_associated, majority_other as majority_accuracy_other
from measured
join intervals using (operator, criterion, heuristic, ablation, arm)
order by operator, criterion, heuristic, ablation, arm
