-- The verdict on every statement for each model that it was checked on, with the study's value and
-- model.
--
-- claim              VARCHAR    short name of the statement
-- operator           VARCHAR    add, subtract, multiply or divide; null for all of them
-- source             VARCHAR    study and place in it
-- statement          VARCHAR    the statement, and in brackets what is measured
-- published          DOUBLE     the study's value of the measured quantity; null if it gives none
-- published_subject  VARCHAR    model of the published value
-- reproduced         VARCHAR[]  models for which the statement holds; if an untrained model is
--                               among them, the statement says little about the others
-- not_reproduced     VARCHAR[]  models for which the statement does not hold
-- not_testable       VARCHAR[]  models on which the statement cannot be tested
-- lowest             DOUBLE     least measured value over models; null if there is none
-- highest            DOUBLE     greatest measured value over models; null if there is none
-- differ             BOOLEAN    whether the statement holds for some models and not for others
select
    claim,
    operator,
    source,
    statement,
    published,
    published_subject,
    list(subject order by subject) filter (verdict = 'reproduced') as reproduced,
    list(subject order by subject) filter (verdict = 'not reproduced') as not_reproduced,
    list(subject order by subject) filter (verdict = 'not testable here') as not_testable,
    min(measured) as lowest,
    max(measured) as highest,
    bool_or(verdict = 'reproduced') and bool_or(verdict = 'not reproduced') as differ
from (from claims union all by name from study_claims)
group by claim, operator, source, statement, published, published_subject
order by claim, operator
