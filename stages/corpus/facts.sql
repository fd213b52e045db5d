-- A fixed synthetic knowledge base of relations between entities. Every name is one token of our
-- own models.
--
-- relation  VARCHAR  capital, capital_of, kind, born_in, native_language or died_in
-- entity    VARCHAR  entity that the question is about
-- object    VARCHAR  the answer
with
    syllables as (
        select unnest([
            'ba', 'de', 'ki', 'lo', 'mu', 'na', 'pe', 'ri', 'so', 'tu', 'va', 'ze'
        ]) as syllable
    ),
    names as (
        select a.syllable || b.syllable || c.syllable as name,
            row_number() over (order by md5(concat_ws(':', $seed, name)), name) - 1 as place
        from syllables as a, syllables as b, syllables as c
    ),
    bounds as (
        select unnest(['country', 'city', 'person', 'thing', 'language', 'kind']) as category,
            unnest([$countries, $countries, $people, $things, $languages, $kinds]) as size,
            unnest(range(6)) as turn
    ),
    starts as (
        select *,
            coalesce(
                sum(size) over (order by turn rows between unbounded preceding and 1 preceding), 0
            ) as start
        from bounds
    ),
    nouns as (
        select category, place - start as place,
            case when category in ('thing', 'kind') then name
                else upper(name[1]) || name[2:] end as name
        from names join starts on place >= start and place < start + size
    ),
    relations as (
        select * from (values
            ('capital', 'country', 'city'), ('capital_of', 'city', 'country'),
            ('kind', 'thing', 'kind'),
            ('born_in', 'person', 'city'), ('native_language', 'person', 'language'),
            ('died_in', 'person', 'city')
        ) as relations(relation, entity_category, category)
    )
select relation, entity.name as entity, object.name as object
from relations
join nouns as entity on entity.category = entity_category
join starts on starts.category = relations.category
join nouns as object
    on object.category = relations.category
    and object.place = case
        -- one-to-one, so that each direction has one answer
        when relation in ('capital', 'capital_of') then entity.place
        else lot($seed, relation, entity.name) % size
    end
order by relation, entity
