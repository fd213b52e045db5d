-- Whether cells that fail have other heuristics than correct cells of equal difficulty. This is the
-- control of failure_tests: only cells of the same stratum are compared. Cells of a stratum have
-- the same result and the same number of carries (add), borrows (subtract) or tens of the product
-- of the units (multiply). For divide they have, within a factor of two, the same slack: how far
-- op1 is from giving another quotient.
--
-- subject          VARCHAR  the model
-- operator         VARCHAR  add, subtract, multiply or divide
-- criterion        VARCHAR  criterion by which neurons have heuristics, as in failures: fdr or
--                           threshold
-- measure          VARCHAR  what is compared, as in failures: associated_neurons or
--                           answer_contribution
-- strata           BIGINT   number of strata that hold correct and incorrect cells
-- cells_correct    BIGINT   number of correct cells in these strata
-- cells_incorrect  BIGINT   number of incorrect cells in these strata
-- auc              DOUBLE   probability that the measure is larger for an incorrect cell than for a
--                           correct cell of its stratum, ties counting half, 0 to 1; mean over all
--                           such pairs of cells
-- auc_ci_low       DOUBLE   lower end of the interval of auc, 0 to 1, $normal standard errors below
--                           it; strata count as independent draws
-- auc_ci_high      DOUBLE   upper end of the interval of auc, 0 to 1; null with fewer than 2 strata
with
    graded as (
        select failures.*, cells.result,
            case operator
                when 'add' then carries(op1, op2)
                when 'subtract' then borrows(op1, op2)
                when 'multiply' then carried(op1, op2)
                else floor(log2(slack(op1, op2, cells.result)))
            end as difficulty
        from failures join cells using (operator, op1, op2)
    ),
    measured as (
        unpivot (
            select operator, criterion, result, difficulty, correct,
                associated_neurons::double as associated_neurons,
                answer_contribution::double as answer_contribution
            from graded
        ) on associated_neurons, answer_contribution into name measure value value
    ),
    valued as (
        select operator, criterion, measure, result, difficulty, value,
            count(*) filter (correct) as correct,
            count(*) filter (not correct) as incorrect
        from measured group by all
    ),
    placed as (  -- twice the correct cells below each value, so that ties give whole numbers, too
        select *, 2 * sum(correct) over (partition by operator, criterion, measure, result,
            difficulty order by value) - correct as beaten
        from valued
    ),
    strata as (
        select operator, criterion, measure, sum(correct) as n1, sum(incorrect) as n2,
            sum(incorrect * beaten) / 2 as wins, n1 * n2 as pairs
        from placed
        group by operator, criterion, measure, result, difficulty
        having n1 > 0 and n2 > 0
    ),
    areas as (
        select operator, criterion, measure, count(*) as strata, sum(n1)::bigint as cells_correct,
            sum(n2)::bigint as cells_incorrect,
            sum(wins) / sum(pairs) as auc
        from strata group by operator, criterion, measure
    ),
    errors as (  -- standard error of a ratio of two sums over strata
        select operator, criterion, measure,
            sqrt(sum((wins - auc * pairs) ** 2) * any_value(areas.strata)
                / nullif(any_value(areas.strata) - 1, 0)) / sum(pairs) as error
        from strata join areas using (operator, criterion, measure)
        group by operator, criterion, measure
    )
select
    $subject as subject, operator, criterion, measure, strata, cells_correct, cells_incorrect, auc,
    larger(auc - $normal * error, 0) as auc_ci_low, smaller(auc + $normal * error, 1) as auc_ci_high
from areas join errors using (operator, criterion, measure)
order by operator, criterion, measure
