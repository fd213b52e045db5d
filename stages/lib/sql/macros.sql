-- Formulas and small tables that several queries share, by name. Every connection has them: that of
-- a stage, of a notebook, of `bag`. A macro that reads a table exists only where the table does.
-- "Eq." and "Sec." are those of the bag-of-heuristics study, "IE" and "RI" those of the
-- causal-mediation study. No macro may read a lazy table or depend on the order of rows:
-- lazy/keys.py does not look inside macros.

-- Results of runs. `run`, `patched` and `clean` are aliases of `runs` in the query
-- (`from runs as patched join runs as clean …`).

-- Eq. 1, IE: ((P*(r') - P(r')) / P(r') + (P(r) - P*(r)) / P*(r)) / 2. r is the clean prompt's
-- answer, r' the counterfactual's, P its probability, and P* the probability after the patch.
-- A ratio without unit, 0 if the patch changes nothing; null if it would divide by 0.
create macro effect(patched, clean) as
    (
        (patched.counterfactual_probability::double - clean.counterfactual_probability)
            / nullif(clean.counterfactual_probability, 0)
        + (clean.answer_probability::double - patched.answer_probability)
            / nullif(patched.answer_probability, 0)
    ) / 2;

-- The effect on logits (Sec. 2: "the same ranking"): half of how far the patch moves the difference
-- between both answers' logits, in logits.
create macro logit_effect(patched, clean) as
    (
        patched.counterfactual_logit::double - clean.counterfactual_logit
        + clean.answer_logit - patched.answer_logit
    ) / 2;

-- NL of Eq. 2: the answer's logit / the largest logit. Both are measured from their mean over the
-- vocabulary, because logits have no zero of their own. 1 if the answer is the most likely token;
-- null if all logits are equal.
create macro normal_logit(run) as
    (run.answer_logit::double - run.mean_logit)
        / nullif(run.max_logit::double - run.mean_logit, 0);

-- Eq. 2: (NL(c) - NL(nothing)) / (NL(everything) - NL(nothing)): how much of the answer a circuit c
-- restores, 0 to 1 if it is between the two ends; null if the ends are equal.
create macro faithfulness(nl, nothing, everything) as
    (nl - nothing) / nullif(everything - nothing, 0);

-- Each answer of one experiment: whether it is correct, 0 or 1, and the logit of the correct answer
-- above the mean over the vocabulary.
create macro answers_of(wanted) as table
    select
        subject, intervention, pair, correct::integer as correct,
        answer_logit::double - mean_logit as logit
    from runs where experiment = wanted;

-- Each answer of one experiment with circuits, those of the table <wanted>_interventions, and the
-- token that would be right: its NL beside that of the circuits `nothing` and `everything` on the
-- same prompt, the two ends of Eq. 2. A prompt without them is left out.
create macro answers_and_ends(wanted) as table
    with
        circuits as (
            select distinct subject, intervention, circuit
            from query_table(wanted || '_interventions')
        ),
        answers as (
            select
                runs.subject, operator, intervention, circuit, pair, answer_token, correct,
                normal_logit(runs) as nl
            from runs join circuits using (subject, intervention) join pairs using (subject, pair)
            where experiment = wanted
        ),
        ends as (
            select subject, operator, pair, max(nl) filter (where circuit = 'nothing') as nothing,
                max(nl) filter (where circuit = 'everything') as everything
            from answers where circuit in ('nothing', 'everything') group by all
        )
    select subject, operator, intervention, pair, answer_token, correct, nl, nothing, everything
    from answers join ends using (subject, operator, pair);

-- The larger, the smaller of two values; null if either is. DuckDB's own `greatest` and `least`
-- ignore nulls, so a bound such as greatest(x, 0) makes 0 of an unknown x: no query uses them.
create macro larger(a, b) as case when a >= b then a when a < b then b end;
create macro smaller(a, b) as case when a <= b then a when a > b then b end;

-- The accuracy of always predicting the most frequent of these answers, 0 to 1: what an accuracy on
-- the same prompts has to exceed. Null answers do not count; null without any answer.
create macro majority_accuracy(answer) as
    list_max(map_values(histogram(answer))) / count(answer);

-- Intervals: percentile bootstrap (Efron and Tibshirani 1993, ch. 13). Replicates differ only in
-- the weights of the prompts.

-- The replicates of a split: how often each of an operator's pairs is drawn, in order of pair.
create macro bootstrap(wanted) as table
    select subject, operator, replicate, weights::double[] as weights
    from bootstrap_weights where split = wanted;

-- The mean of a replicate. each_value: in order of pair, 0 for a pair without a value; has_value: 1
-- or 0, accordingly; counted: how many pairs have a value. A pair without a value has no weight;
-- null if no pair that was drawn has one. The weights sum to the number of pairs, len(weights).
create macro weighted_mean(each_value, has_value, counted, weights) as
    case when counted > 0 then list_dot_product(each_value, weights)
        / nullif(if(counted = len(weights), counted, list_dot_product(has_value, weights)), 0) end;

-- The ends, [low, high], of the interval that holds the share `confidence` of the replicates x,
-- with equally many outside on either side.
create macro percentile_interval(x, confidence) as
    quantile_cont(x, [(1 - confidence) / 2, (1 + confidence) / 2]);

-- A seeded hash for random choices, 0 to 2^64 - 1, of up to seven values. The same values give the
-- same hash on every machine; nulls are ignored.
create macro lot(a, b := null, c := null, d := null, e := null, f := null, g := null) as
    md5_number_lower(concat_ws(':', a, b, c, d, e, f, g));

-- The split of a prompt: discovery (to find components) or evaluation (to measure circuits). It
-- depends on nothing but the prompt.
create macro split_of(operator, op1, op2) as
    if(lot('split', operator, op1, op2) % 2 = 0, 'discovery', 'evaluation');

-- What can be patched.

-- The positions of a prompt that have a role, in their order.
create macro roles() as table
    select unnest(['op1', 'operator', 'op2', 'last']) as position, unnest(range(4)) as role;

-- The columns of `architecture` for each layer, and for each head of each layer, both from 0.
create macro each_layer() as table select *, unnest(range(layers)) as layer from architecture;
create macro each_head() as table select *, unnest(range(heads)) as head from each_layer();

-- The largest effect and the largest logit_effect of each head over the positions, each at its own
-- position (Fig. 2a has all positions).
create macro head_effects() as table
    select
        subject, operator, layer, head, max(effect) as effect, max(logit_effect) as logit_effect
    from component_effects where component = 'head' group by subject, operator, layer, head;

-- Three rankings of a layer's neurons at a position, one below the other: by effect; by
-- effect_plus_std, the effect plus its standard deviation over prompts, as the study's code does;
-- and by logit_effect. rank: 1 for the largest. Only neurons that have both effects.
create macro neuron_rankings() as table
    select
        subject, operator, layer, position, neuron,
        unnest(['effect', 'effect_plus_std', 'logit_effect']) as ranking,
        unnest([rank, rank_mean_plus_std, rank_logit]) as rank
    from neuron_effects
    where method = 'exact' and effect is not null and logit_effect is not null;

-- Digits of an answer, each predicted by a model of its own.

-- The digit that each model predicts, from 1. A model that is named twice counts for its first
-- digit.
create macro digit_models(model_1, model_2, model_3) as table
    select subject, min(digit)::integer as digit
    from (select unnest([model_1, model_2, model_3]) as subject, unnest(range(1, 4)) as digit)
    group by subject;

-- The discovery prompts of all digits, and the half of each, 0 or 1. A prompt is in the same half
-- for all digits.
create macro digit_prompts(model_1, model_2, model_3) as table
    select subject, digit, pair, operator, (lot('half', operator, op1, op2) % 2)::integer as half
    from pairs join digit_models(model_1, model_2, model_3) using (subject)
    where split = 'discovery';

-- The mean logit_effect on each half of the prompts of each neuron that is patched on its own, at
-- the last position, for all operators.
create macro digit_effects(model_1, model_2, model_3) as table
    select
        digit, prompts.operator, half, layer, units[1] as neuron,
        avg(logit_effect(patched, clean)) as effect
    from neuron_interventions as patches
    join runs as patched using (subject, intervention)
    join runs as clean using (subject, experiment, pair)
    join digit_prompts(model_1, model_2, model_3) as prompts using (subject, pair)
    where experiment = 'neuron' and clean.intervention = 0
        and position = 'last' and patches.operator is null
    group by all;

-- Causal mediation.

-- Each pair in all groups over which its effects are averaged: that of its operator, if it has one,
-- and that of all operators together.
create macro grouped_pairs() as table
    select
        subject, pair, task, condition,
        unnest(if(operator is null, ['all'], [operator, 'all'])) as operator
    from mediation_pairs;

-- Three rankings of a layer's units, one below the other: by effect, by logit_effect, and by size,
-- the magnitude of logit_effect.
create macro unit_rankings() as table
    select
        subject, question, half, operator, component, layer, unit,
        unnest(['effect', 'logit_effect', 'size']) as ranking,
        unnest([rank, rank_logit, rank_size]) as rank,
        unnest([effect, logit_effect, logit_effect]) is not null as known
    from unit_effects;

-- How hard a cell is, by operator. Operands are whole numbers from 0; those that are added or
-- subtracted are below 10,000.

-- a + b: how many digits are carried.
create macro carries(a, b) as len([p for p in [10, 100, 1000] if a % p + b % p >= p]);

-- a - b: how many digits borrow.
create macro borrows(a, b) as len([p for p in [10, 100, 1000] if a % p < b % p]);

-- a * b: the tens of the product of the units digits, which are carried.
create macro carried(a, b) as (a % 10) * (b % 10) // 10;

-- a // b = result: how far a is from giving another quotient, 1 to b.
create macro slack(a, b, result) as
    if(result = 0, b - a, smaller(a % nullif(b, 0) + 1, b - a % nullif(b, 0)));

-- The span of `width` numbers, counted from 0, that x is in, as text: '40..49'.
create macro span(x, width) as x // width * width || '..' || x // width * width + width - 1;
