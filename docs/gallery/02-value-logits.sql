-- Numbers that one neuron promotes
-- Direct logit attribution of the same neuron's output weights, averaged over ten numbers each. The
-- neuron promotes most the results on which it is active.
select number // 10 * 10 as number_from, avg(logit) as logit
from value_logits
where
    subject = $subject
    and (layer, neuron) = (
        select (layer, neuron)
        from labels join spectra using (subject, operator, layer, neuron)
        where subject = $subject and operator = 'add' and labels.rank = 1 and spectra.rank = 1
        order by kind = 'range' and quantity = 'result' desc, share desc, layer, neuron
        limit 1
    )
group by all
order by number_from
