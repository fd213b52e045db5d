-- Whether cells that fail have other heuristics than cells that are answered correctly (Sec. 4.3,
-- Fig. 9). All cells count; none is sampled.
--
-- Cohen's d is the difference of means in pooled standard deviations. Its interval allows either
-- group its own variance (delta method, Welch's degrees of freedom). The auc is the Mann-Whitney
-- statistic. Its interval is Wilson's, for the number of comparisons that gives the variance of
-- DeLong et al. 1988; where that variance is 0, for the number of cells in the smaller group.
-- Intervals treat cells as independent draws from more such cells. Where a group has fewer than 2
-- cells, there are only counts and means.
--
-- subject          VARCHAR  the model
-- operator         VARCHAR  add, subtract, multiply or divide
-- criterion        VARCHAR  criterion by which neurons have heuristics, as in failures: fdr or
--                           threshold
-- measure          VARCHAR  what is compared, as in failures: associated_neurons or
--                           answer_contribution
-- cells_correct    BIGINT   number of cells that are answered correctly
-- cells_incorrect  BIGINT   number of cells that are answered wrongly
-- mean_correct     DOUBLE   mean of the measure over correct cells; null if there are none
-- mean_incorrect   DOUBLE   mean of the measure over incorrect cells; null if there are none
-- difference       DOUBLE   mean_incorrect - mean_correct, in units of the measure
-- d                DOUBLE   Cohen's d of the difference, in pooled standard deviations; null if the
--                           measure does not vary
-- d_ci_low         DOUBLE   lower end of the interval of d; its confidence is that of $normal
--                           standard errors of a normal distribution
-- d_ci_high        DOUBLE   upper end of the interval of d
-- auc              DOUBLE   probability that the measure is larger for a random incorrect cell than
--                           for a random correct cell, ties counting half, 0 to 1
-- auc_ci_low       DOUBLE   lower end of the interval of auc, 0 to 1, of the same confidence as
--                           that of d
-- auc_ci_high      DOUBLE   upper end of the interval of auc, 0 to 1
with
    measured as (
        unpivot (
            select operator, criterion, correct, associated_neurons::double as associated_neurons,
                answer_contribution::double as answer_contribution
            from failures
        ) on associated_neurons, answer_contribution into name measure value value
    ),
    sides as (
        select operator, criterion, measure, count(*) filter (correct) as n1,
            count(*) filter (not correct) as n2,
            avg(value) filter (correct) as mean1, avg(value) filter (not correct) as mean2,
            var_samp(value) filter (correct) as variance1,
            var_samp(value) filter (not correct) as variance2
        from measured group by all
    ),
    pooled as (
        select *, ((n1 - 1) * variance1 + (n2 - 1) * variance2) / (n1 + n2 - 2) as variance,
            variance1 / n1 as part1, variance2 / n2 as part2
        from sides where n1 >= 2 and n2 >= 2
    ),
    effects as (
        select operator, criterion, measure, (mean2 - mean1) / sqrt(variance) as d,
            sqrt((part1 + part2) / variance  -- variance of the difference, and of its divisor
                + d ** 2 * ((n1 - 1) * variance1 ** 2 + (n2 - 1) * variance2 ** 2)
                    / (2 * (n1 + n2 - 2) ** 2 * variance ** 2)) as error,
            -- 1 / Welch's degrees of freedom
            (part1 ** 2 / (n1 - 1) + part2 ** 2 / (n2 - 1)) / (part1 + part2) ** 2 as unfree,
            -- quantile of Student's t (Cornish and Fisher)
            $normal + ($normal ** 3 + $normal) / 4 * unfree
                + (5 * $normal ** 5 + 16 * $normal ** 3 + 3 * $normal) / 96
                    * unfree ** 2 as quantile
        from pooled where variance > 0
    ),
    valued as (
        select operator, criterion, measure, value, count(*) filter (correct) as correct,
            count(*) filter (not correct) as incorrect
        from measured group by all
    ),
    -- twice the cells of the other group below each value, so that ties give whole numbers, too
    placed as (
        select operator, criterion, measure, correct, incorrect,
            2 * sum(correct) over lower - correct as beaten,
            2 * sum(incorrect) over higher - incorrect as beaten_by
        from valued
        window
            lower as (partition by operator, criterion, measure order by value),
            higher as (partition by operator, criterion, measure order by value desc)
    ),
    compared as (
        select operator, criterion, measure, n1, n2, sum(incorrect * beaten) as wins,
            n2 * sum(incorrect * beaten * beaten) - wins * wins as spread2,
            n1 * sum(correct * beaten_by * beaten_by) - wins * wins as spread1
        from placed join pooled using (operator, criterion, measure)
        group by operator, criterion, measure, n1, n2
    ),
    areas as (
        select operator, criterion, measure, wins / (2 * n1 * n2) as auc,
            (spread1 / (n1 - 1) + spread2 / (n2 - 1)) / (2 * n1 * n2) ** 2 as variance,
            coalesce(auc * (1 - auc) / nullif(variance, 0), smaller(n1, n2)) as comparisons,
            $normal ** 2 / comparisons as doubt
        from compared
    ),
    intervals as (
        select operator, criterion, measure, auc, (auc + doubt / 2) / (1 + doubt) as centre,
            sqrt(doubt * auc * (1 - auc) + doubt ** 2 / 4) / (1 + doubt) as reach,
            larger(centre - reach, 0) as auc_ci_low, smaller(centre + reach, 1) as auc_ci_high
        from areas
    )
select
    $subject as subject, operator, criterion, measure, n1 as cells_correct, n2 as cells_incorrect,
    mean1 as mean_correct, mean2 as mean_incorrect, mean2 - mean1 as difference,
    d, d - quantile * error as d_ci_low, d + quantile * error as d_ci_high,
    auc, auc_ci_low, auc_ci_high
from sides
left join effects using (operator, criterion, measure)
left join intervals using (operator, criterion, measure)
order by operator, criterion, measure
