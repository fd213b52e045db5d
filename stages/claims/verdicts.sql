-- What became of every statement on each subject that it was held against, beside the value and model of the study.
--
-- claim              VARCHAR    its short name
-- operator           VARCHAR    add, subtract, multiply or divide; null for all of them
-- source             VARCHAR    study and place
-- statement          VARCHAR    what is said, and what is measured in brackets
-- published          DOUBLE     the study's value of the measured quantity; null if it gives none
-- published_subject  VARCHAR    of which model
-- reproduced         VARCHAR[]  subjects of which it holds; where one of them is untrained, it says little of the others
-- not_reproduced     VARCHAR[]  subjects of which it does not
-- not_testable       VARCHAR[]  subjects that cannot tell
-- lowest             DOUBLE     least value measured; null where there is none
-- highest            DOUBLE     greatest
-- differ             BOOLEAN    whether it holds of some subjects and not of others
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
