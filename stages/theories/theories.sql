-- The theories of the late neurons compared, with equal numbers of parameters and by description
-- length: how much each explains, and what the model predicts if every late neuron takes the
-- theory's prediction.
--
-- subject            VARCHAR  the model
-- operator           VARCHAR  add, subtract, multiply or divide
-- theory             VARCHAR  bag, helix, waves, labels or discovered, as in theory_fits; mean
--                             (each neuron's mean over the operator's trained cells); or itself
--                             (the neurons' stored activations)
-- parameters         INTEGER  largest number of terms per neuron, without the intercept; 0 for
--                             mean; null for labels and discovered, whose terms other tables name,
--                             and for itself
-- what               VARCHAR  what value measures: activation, logit and written, as in
--                             theory_fits, on held-out cells; or restored (share of the answer's
--                             logit) and accuracy, when the predictions replace all late neurons at
--                             the last position
-- value              DOUBLE   activation, logit, written: explained share, at most 1; restored: 0
--                             as with the neurons' means, 1 as without a patch, null if the means
--                             do not clearly lower the answer's logit (the interval of the loss
--                             begins at 0 or below); accuracy: share of prompts whose most likely
--                             next token is the answer, 0 to 1
-- ci_low             DOUBLE   lower end of the bootstrap interval of value, over neurons, cells or
--                             prompts
-- ci_high            DOUBLE   upper end of the bootstrap interval of value
-- relabelled         DOUBLE   value of the control: for bag, helix and waves the same search on
--                             maps with relabelled operands, for labels and discovered a fit of
--                             another neuron's conditions; null for mean and itself, and for
--                             restored and accuracy with numbers of parameters whose control was
--                             not run (theory_interventions)
-- bits               DOUBLE   mean description length of a neuron in bits, beyond its mean, as in
--                             theory_fits; 0 for mean, null for itself
-- choices            INTEGER  terms in the theory's dictionary; null for mean and itself, and for
--                             discovered, whose predicates are too many to list
-- samples            BIGINT   neurons (activation), cells (logit, written) or prompts (restored,
--                             accuracy)
-- majority_accuracy  DOUBLE   accuracy of always predicting the most frequent answer of these
--                             prompts, 0 to 1; null unless what is accuracy
with
    patches as (
        select distinct subject, intervention, theory, coalesce(parameters, -1) as size, kind
        from theory_interventions
    ),
    answers as (
        select operator, theory, size, kind, pair, answer_token, correct, logit
        from answers_of('theory')
        join patches using (subject, intervention)
        join pairs using (subject, pair)
    ),
    ends as (
        select
            operator, pair,
            max(logit) filter (where theory = 'mean') as mean,
            max(logit) filter (where theory = 'clean') as clean
        from answers
        group by operator, pair
    ),
    summed as (
        select
            operator, theory, size, kind,
            list(logit - mean order by pair) as gained,
            list(clean - mean order by pair) as whole,
            list(correct::double order by pair) as are_correct,
            avg(logit - mean) / nullif(avg(clean - mean), 0) as restored,
            avg(correct) as accuracy,
            majority_accuracy(answer_token) as majority,
            count(*) as prompts
        from answers join ends using (operator, pair)
        where theory <> 'clean'
        group by operator, theory, size, kind
    ),
    intervals as (
        select
            operator, theory, size, kind,
            percentile_interval(
                list_dot_product(gained, weights) / nullif(list_dot_product(whole, weights), 0),
                $confidence
            ) as restored_edges,
            percentile_interval(list_dot_product(whole, weights), $confidence)[1] > 0 as loses,
            percentile_interval(list_dot_product(are_correct, weights) / prompts, $confidence)
                as accuracy_edges
        from summed join bootstrap('evaluation') using (operator)
        group by operator, theory, size, kind
    ),
    run as (
        select
            operator, theory, size, kind,
            unnest(['restored', 'accuracy']) as what,
            unnest([if(loses, restored, null), accuracy]) as value,
            unnest([if(loses, restored_edges[1], null), accuracy_edges[1]]) as ci_low,
            unnest([if(loses, restored_edges[2], null), accuracy_edges[2]]) as ci_high,
            unnest([null, majority]) as majority_accuracy,
            prompts
        from summed join intervals using (operator, theory, size, kind)
    ),
    descriptions as (
        select distinct operator, theory, coalesce(parameters, -1) as size, bits, choices
        from theory_fits
        where layer is null
        union all
        select distinct operator, 'mean', 0, 0, null from theory_fits
    ),
    relabelled as (
        select operator, theory, size, what, value as relabelled
        from run
        where kind = 'relabelled'
    ),
    together as (
        select
            operator, theory, parameters, what, value, ci_low, ci_high, relabelled, bits, choices,
            if(what = 'activation', neurons, cells) as samples, null as majority_accuracy
        from theory_fits
        where layer is null
        union all
        select
            operator, theory, nullif(size, -1), what, value, ci_low, ci_high, relabelled, bits,
            choices, prompts, majority_accuracy
        from run
        left join relabelled using (operator, theory, size, what)
        left join descriptions using (operator, theory, size)
        where kind = 'fit'
    )
select
    $subject as subject,
    operator, theory,
    parameters::integer as parameters,
    what, value, ci_low, ci_high, relabelled, bits, choices,
    samples::bigint as samples, majority_accuracy
from together
order by operator, what, parameters nulls last, theory
