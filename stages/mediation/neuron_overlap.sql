-- Whether two kinds of question use the same neurons (neuron overlap of the mediation study): how
-- many of a layer's k units with the largest effects they share, compared with chance, and with two
-- halves of one question's pairs, which differ by noise alone.
--
-- subject     VARCHAR   the model
-- component   VARCHAR   neuron, or coordinate of the MLP's output (the study's "neuron")
-- layer       SMALLINT  decoder layer, from 0
-- ranking     VARCHAR   what ranks units: effect, logit_effect, or size (the absolute logit_effect)
-- k           INTEGER   number of top units of either question
-- width       INTEGER   patched units of the layer: all of them, or those of
--                       unit_mediation_interventions
-- sample      VARCHAR   whole: all pairs of both questions; half: the first half of question's
--                       pairs and the second half of other's pairs
-- question    VARCHAR   kind of question, as in unit_mediation_pairs
-- other       VARCHAR   the other kind of question; for halves also the same one
-- shared      BIGINT    units that are among the k of both questions
-- share       DOUBLE    shared / k, 0 to 1
-- ceiling     DOUBLE    share between the two halves of one question, mean over both questions, 0
--                       to 1; if it is no larger than chance, rankings are noise. Halves have half
--                       of the pairs, so that the share of whole samples may exceed the ceiling
-- chance      DOUBLE    expected share of two random sets: k / width, 0 to 1
-- chance_std  DOUBLE    standard deviation of the share of two random sets
-- p_value     DOUBLE    probability that two random sets share at least as many (hypergeometric)
-- detectable  DOUBLE    smallest share with a p_value below 0.05, which is the smallest that a test
--                       at this level can find; null if there is none
with
    sizes as (
        select component, layer, count(distinct unit)::integer as width
        from unit_effects
        group by all
    ),
    ks as (
        select distinct component, layer, width, k::integer as k
        from sizes, unnest($overlap_ks) as wanted(k)
        where k <= width
    ),
    ranked as (from unit_rankings() where operator = 'all'),
    tops as (select * from ranked where known and rank <= list_max($overlap_ks)),
    sides as (
        select
            question, half, component, layer, ranking,
            count(*) filter (known) as known
        from ranked
        group by all
    ),
    compared as (
        select
            component, layer, ranking, k, width, a.half, b.half as other_half, a.question,
            b.question as other
        from sides as a
        join sides as b using (component, layer, ranking)
        join ks using (component, layer)
        where k <= a.known and k <= b.known
            and (
                a.half = 'both' and b.half = 'both' and a.question < b.question
                or a.half = 'first' and b.half = 'second'
            )
    ),
    meeting as (
        select
            component, layer, ranking, a.half, a.question,
            b.question as other,
            larger(a.rank, b.rank) as rank
        from tops as a join tops as b using (component, layer, ranking, unit)
        where a.half = 'both' and b.half = 'both' or a.half = 'first' and b.half = 'second'
    ),
    counted as (
        select c.* exclude (other_half), count(m.rank) as shared
        from compared as c
        left join meeting as m
            on (m.component, m.layer, m.ranking, m.half, m.question, m.other)
                = (c.component, c.layer, c.ranking, c.half, c.question, c.other)
            and m.rank <= c.k
        group by all
    ),
    possible as (
        select distinct width, k, unnest(range(larger(0, 2 * k - width), k + 1)) as shared from ks
    ),
    -- binomial(k, shared) * binomial(width - k, k - shared) / binomial(width, k), summed from the
    -- largest `shared` down
    tails as (
        select
            width, k, shared,
            smaller(1, sum(exp(
                2 * lgamma(k + 1) + 2 * lgamma(width - k + 1) - lgamma(shared + 1)
                - 2 * lgamma(k - shared + 1) - lgamma(width - 2 * k + shared + 1)
                - lgamma(width + 1)
            )) over (partition by width, k order by shared desc)) as p_value
        from possible
    ),
    critical as (
        select width, k, min(shared) / k as detectable
        from tails
        where p_value < 0.05
        group by width, k
    ),
    own as (
        select component, layer, ranking, k, question, shared / k as share
        from counted
        where half = 'first' and question = other
    )
select
    $subject as subject,
    component, layer, ranking, k, width,
    if(half = 'both', 'whole', 'half') as sample,
    c.question, c.other, shared,
    shared / k as share,
    (a.share + b.share) / 2 as ceiling,
    k / width as chance,
    sqrt((1 - k / width) * (width - k) / larger(width - 1, 1) / width) as chance_std,
    p_value, detectable
from counted as c
join tails using (width, k, shared)
left join critical using (width, k)
left join own as a using (component, layer, ranking, k, question)
left join own as b
    on (b.component, b.layer, b.ranking, b.k, b.question)
        = (c.component, c.layer, c.ranking, c.k, c.other)
order by component, layer, ranking, k, sample desc, c.question, c.other
