-- Numbers that one neuron promotes
-- The direct logit attribution of the same neuron's output weights, averaged over ten numbers each.
-- The neuron promotes the results on which it is active.
select number // 10 * 10 as number_from, avg(logit) as logit
from value_logits
where
    subject = $subject
    and (layer, neuron) = (
        select (layer, neuron)
        from labels
        where subject = $subject and operator = 'add'
        order by kind = 'range' and quantity = 'result' desc, chance_corrected desc, layer, neuron
        limit 1
    )
group by all
order by number_from
